# Makes a golden file for `transload verify --golden`: what transformers computes for a checkpoint, in float32.
import argparse
import inspect
import json
import os
import pathlib
import platform
import random
import sys
import tempfile

EXIT_USAGE = 2
NOISE_FACTOR = 20  # tolerance over the rounding noise measured
LEAST_TOLERANCE = 2e-4
LONGEST_TOKEN_RUN = 4096
LONGEST_REASON = 400  # characters kept of what another library says

FORMAT = """The file holds, for N prompt tokens, M new ones, T = N + M - 1 positions, V vocabulary, L layers, H hidden width:
  tokens    i32 [N+M]                  prompt, then greedy tokens
  logits    f32 [T, V]                 row p: after reading tokens[0..p]
  hidden    f32 [L+1, N, H]            [0] input of layer 0, [i] output of layer i-1, [L] after the final norm
  pre_norm  f32 [N, H]                 output of the last layer, before the final norm
  k, v      f32 [L, KV heads, T, dim]  cache entries of every position; keys after rotary embedding
about.json beside it says how it was made and how closely it can be met."""


class Refusal(Exception):
    """An input that cannot be used; the message is for the user."""


def import_torch():
    """torch and transformers, or a Refusal that says what is missing."""
    missing = []
    for name in ("torch", "transformers", "safetensors"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise Refusal(f"this needs torch, transformers and safetensors: got no {', '.join(missing)} in {sys.executable}, "
                      "expected all three (pip install torch transformers safetensors)")
    import torch
    import transformers
    return torch, transformers


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description="make a golden file from a checkpoint, where torch and transformers are installed",
        epilog=FORMAT,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=pathlib.Path, help="folder with config.json and .safetensors")
    parser.add_argument("-o", "--output", metavar="FILE", type=pathlib.Path, required=True, help="file to write")
    parser.add_argument("--prompt-ids", metavar="ID[,ID...]", help="token ids of the prompt")
    parser.add_argument("--prompt-length", metavar="N", type=int, default=24, help="of a pseudo-random prompt (default: 24)")
    parser.add_argument("--seed", type=int, default=0, help="of the pseudo-random prompt (default: 0)")
    parser.add_argument("--new-tokens", metavar="M", type=int, default=16, help="greedy tokens after the prompt (default: 16)")
    parser.add_argument("--dtype", choices=["float32"], default="float32", help="arithmetic; stored weights are widened to it")
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code that the checkpoint carries")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE and about.json")
    return parser.parse_args(arguments)


def check_arguments(options):
    if not (options.checkpoint / "config.json").is_file():
        raise Refusal(f"{options.checkpoint}: checkpoint: got no config.json here, expected a folder with config.json and "
                      ".safetensors")
    for name, value in (("--prompt-length", options.prompt_length), ("--new-tokens", options.new_tokens)):
        if not 1 <= value <= LONGEST_TOKEN_RUN:
            raise Refusal(f"{name}: got {value}, expected 1 to {LONGEST_TOKEN_RUN}")
    for path in (options.output, about_path(options.output)):
        if path.exists() and not options.overwrite:
            raise Refusal(f"{path}: got a file that exists, expected none (or --overwrite)")


def about_path(output):
    return output.with_name("about.json")


def prompt_of(options, vocab):
    if options.prompt_ids is None:
        return [random.Random(options.seed).randrange(vocab) for _ in range(options.prompt_length)]
    try:
        ids = [int(text) for text in options.prompt_ids.split(",")]
    except ValueError:
        raise Refusal(f"--prompt-ids: got '{options.prompt_ids}', expected whole numbers with commas between") from None
    for token in ids:
        if not 0 <= token < vocab:
            raise Refusal(f"--prompt-ids: got {token}, expected an id below the vocabulary's {vocab}")
    return ids


def load_model(torch, transformers, options):
    """The model in float32 with eager attention: other attention kernels round differently."""
    folder, trust = options.checkpoint, options.trust_remote_code
    try:
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(folder,
                                                                           dtype=torch.float32,
                                                                           attn_implementation="eager",
                                                                           trust_remote_code=trust,
                                                                           local_files_only=True,
                                                                           output_loading_info=True)
    except (ValueError, OSError, KeyError, TypeError, ImportError) as error:
        why = " ".join(str(error).split())
        if not trust and "trust_remote_code" in why:
            raise Refusal(f"{folder}: the checkpoint brings Python code of its own, which is not run: read it, then give "
                          "--trust-remote-code") from None
        raise Refusal(f"{folder}: transformers {transformers.__version__} cannot load it: {why[:LONGEST_REASON]}") from None
    missing = sorted(loading["missing_keys"])
    if missing:
        raise Refusal(f"{folder}: got no tensor for {', '.join(missing[:5])}, expected all (random values would stand in)")
    return model.eval()


class Capture:
    """Hooks on every decoder layer and the final norm; `take` runs the model and gives what they saw."""

    def __init__(self, torch, transformers, model):
        self.torch, self.transformers, self.model = torch, transformers, model
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.model
        try:
            self.layers, self.norm = list(decoder.layers), decoder.norm
        except AttributeError as error:
            raise Refusal(f"{type(model).__name__}: got {error}, expected a decoder with 'layers' and 'norm'") from None
        # transformers 5 renames the argument.
        names = inspect.signature(model.forward).parameters
        self.cache_argument = "cache" if "cache" in names else "past_key_values"

    def full_cache(self):
        """A cache without config: it knows of no windows, so no entry of a sliding layer is ever dropped."""
        return self.transformers.DynamicCache()

    def forward(self, ids, cache):
        return self.model(self.torch.tensor([ids]), use_cache=True, **{self.cache_argument: cache}).logits[0].float()

    def take(self, ids):
        """One causal pass over all ids: logits, inputs and outputs of layers, the final norm's output, keys, values."""
        inputs, outputs, normed = {}, {}, []

        def first(value):
            return (value[0] if isinstance(value, tuple) else value)[0].float()

        hooks = []
        for index, layer in enumerate(self.layers):

            def before(_, args, kwargs, index=index):
                inputs[index] = first(args[0] if args else kwargs["hidden_states"])

            def after(_, args, out, index=index):
                outputs[index] = first(out)

            hooks += [layer.register_forward_pre_hook(before, with_kwargs=True), layer.register_forward_hook(after)]
        hooks.append(self.norm.register_forward_hook(lambda _, args, out: normed.append(first(out))))
        cache = self.full_cache()
        try:
            logits = self.forward(ids, cache)
        finally:
            for hook in hooks:
                hook.remove()
        hidden = [inputs[0]] + [outputs[i] for i in range(len(self.layers))]
        return logits, hidden, normed[0], *self.cache_entries(cache, len(ids))

    def cache_entries(self, cache, length):
        keys = [layer.keys[0].float() for layer in cache.layers]
        values = [layer.values[0].float() for layer in cache.layers]
        shapes = {tuple(value.shape) for value in keys + values}
        if len(keys) != len(self.layers) or len(shapes) != 1 or keys[0].shape[1] != length:
            raise Refusal(f"cache entries: got {len(keys)} layers of shapes {sorted(shapes)}, expected {len(self.layers)} of "
                          f"one shape with {length} positions")
        return self.torch.stack(keys), self.torch.stack(values)


def greedy(capture, prompt, count):
    """`count` tokens after the prompt, decoded one at a time, with the logits of every position."""
    torch, cache, tokens = capture.torch, capture.full_cache(), list(prompt)
    rows = [capture.forward(tokens, cache)]
    while True:
        tokens.append(int(rows[-1][-1].argmax()))
        if len(tokens) == len(prompt) + count:
            return tokens, torch.cat(rows)
        rows.append(capture.forward(tokens[-1:], cache))


def compute(torch, capture, prompt, new_tokens):
    """The tensors of the golden file and the numbers of about.json."""
    tokens, decoded = greedy(capture, prompt, new_tokens)
    read = tokens[:-1]
    logits, hidden, normed, keys, values = capture.take(read)
    cache = capture.full_cache()
    single = torch.cat([capture.forward([token], cache) for token in read])
    # Three orders of the same sums; how far they are apart is rounding.
    noise = max(float((decoded - logits).abs().max()), float((single - logits).abs().max()))
    best = logits[len(prompt) - 1:].topk(2).values
    count = len(prompt)
    tensors = {
        "tokens": torch.tensor(tokens, dtype=torch.int32),
        "logits": logits,
        "hidden": torch.stack([h[:count] for h in hidden[:-1]] + [normed[:count]]),
        "pre_norm": hidden[-1][:count],
        "k": keys,
        "v": values,
    }
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor.float()).all()):
            raise Refusal(f"'{name}': got NaN or infinity, expected finite values")
    if tokens[count:] != logits[count - 1:].argmax(-1).tolist():
        raise Refusal("greedy tokens: got others from one pass than from decoding, expected the same (two logits within "
                      "rounding; try another prompt)")
    return tensors, {
        "prompt_len": count,
        "new_tokens": new_tokens,
        "checks": {"decode_vs_full_max_abs": noise},
        "stats": {
            "logits_min": float(logits.min()),
            "logits_max": float(logits.max()),
            "greedy_margin_min": float((best[:, 0] - best[:, 1]).min()),
        },
        "tolerance": {"fp32_max_abs_logits": max(LEAST_TOLERANCE, NOISE_FACTOR * noise)},
    }


def write_whole(path, write):
    """`write(temporary)`, then rename: the file is whole or absent."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(temporary)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


def make(options):
    check_arguments(options)
    torch, transformers = import_torch()
    import safetensors
    import safetensors.torch
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = load_model(torch, transformers, options)
    config = model.config.get_text_config()
    prompt = prompt_of(options, config.vocab_size)
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and len(prompt) + options.new_tokens > longest:
        raise Refusal(f"prompt and new tokens: got {len(prompt) + options.new_tokens} positions, expected at most {longest}")
    with torch.no_grad():
        tensors, numbers = compute(torch, Capture(torch, transformers, model), prompt, options.new_tokens)
    about = {
        "family": config.model_type,
        "architecture": model.config.architectures,
        "source": f"transformers {transformers.__version__}, eager attention, float32",
        "seed": options.seed if options.prompt_ids is None else None,
        "new_tokens": options.new_tokens,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "safetensors": safetensors.__version__,
        },
        "goldens": {options.output.name: numbers},
    }
    contiguous = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    write_whole(options.output, lambda path: safetensors.torch.save_file(contiguous, path))
    write_whole(about_path(options.output), lambda path: pathlib.Path(path).write_text(json.dumps(about, indent=2) + "\n"))
    return numbers


def main(arguments=None):
    options = parse_arguments(arguments)
    try:
        numbers = make(options)
    except (Refusal, OSError) as error:
        print(f"make_golden: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(f"wrote {options.output}: {numbers['prompt_len']} prompt and {numbers['new_tokens']} new tokens, "
          f"tolerance of logits {numbers['tolerance']['fp32_max_abs_logits']:.1e}, "
          f"smallest greedy margin {numbers['stats']['greedy_margin_min']:.3g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
