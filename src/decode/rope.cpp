// Rotary embedding of a decode step from cos and sin inputs, half-split order, full or half tables.
#include "decode/step_builder.h"

namespace transload {

ValueId build_rope(StepBuilder& b, const std::string& name, ValueId x, uint32_t width, const RopeTables& tables) {
  const uint64_t head_dim = b.shape(x)[3];
  const uint64_t half = width / 2;
  const bool partial = width < head_dim;
  const ValueId first = b.slice(name + "_first", x, 3, 0, half);
  const ValueId second = b.slice(name + "_second", x, 3, half, width);

  std::vector<ValueId> parts;
  if (b.options().rope_width == RopeWidth::full) {
    const ValueId turning = partial ? b.slice(name + "_turning", x, 3, 0, width) : x;
    const ValueId swapped = b.concat(name + "_swapped", {b.unary(Op::neg, name + "_negated", second), first}, 3);
    const ValueId cosine = b.binary(Op::mul, name + "_cosine", turning, tables.cos);
    const ValueId sine = b.binary(Op::mul, name + "_sine", swapped, tables.sin);
    if (!partial) return b.binary(Op::add, name, cosine, sine);
    parts = {b.binary(Op::add, name + "_turned", cosine, sine)};
  } else {
    const ValueId first_turned =
        b.binary(Op::sub, name + "_first_turned", b.binary(Op::mul, name + "_first_cosine", first, tables.cos),
                 b.binary(Op::mul, name + "_second_sine", second, tables.sin));
    const ValueId second_turned =
        b.binary(Op::add, name + "_second_turned", b.binary(Op::mul, name + "_second_cosine", second, tables.cos),
                 b.binary(Op::mul, name + "_first_sine", first, tables.sin));
    parts = {first_turned, second_turned};
  }
  if (partial) parts.push_back(b.slice(name + "_passing", x, 3, width, head_dim));
  return b.concat(name, parts, 3);
}

}  // namespace transload
