# Verify finds what is wrong with a bundle and names it: good bundles pass; each fault, alone, is named by layer and tensor.
import json

import pytest

import mutations as m
from golden import Golden, write_tensors

goldens = {name: Golden(name) for name in ("spark", "gemma3", "llama", "llama_gguf_q8_0", "phimoe", "phi3small_unofficial")}
BUNDLES = {
    "spark": ("spark", []),
    "spark_roll": ("spark", ["--cache-layout", "roll"]),
    "spark_f16": ("spark", ["--compute", "fp16"]),
    "spark_gelu_node": ("spark", ["--opset", 20]),
    "gemma3": ("gemma3", []),
    "gemma3_gelu_node": ("gemma3", ["--opset", 20, "--cache-layout", "roll"]),
    "llama": ("llama", ["--weights", "fp16"]),
    "llama_gguf": ("llama_gguf_q8_0", []),
    "spark_small": ("spark", [], 6),
    "phimoe": ("phimoe", []),
    "phi3small": ("phi3small_unofficial", []),
}


class Case:

    def __init__(self, name, bundle, mutate, tensor, layer=None, weight=None, stale=None):
        self.name, self.bundle, self.mutate = name, bundle, mutate
        self.tensor, self.layer, self.weight = tensor, layer, weight
        self.stale = stale or ("step_q1_c48.onnx", "")  # (file, tensor) whose digest differs first


def weight_case(name, bundle, mutate, weight, tensor, layer):
    """A fault in weights.bin: the digest names the weight, the comparison the first value made from it."""
    return Case(name, bundle, mutate, tensor, layer, weight, ("weights.bin", weight))


CASES = [
    weight_case("an exponent byte of a weight", "spark", m.exponent_byte("layers_1_mlp_up_weight"), "layers_1_mlp_up_weight",
                "layers_1_mlp_up", 1),
    weight_case("a weight four times too large", "spark", m.small_exponent("layers_2_attn_o_weight"), "layers_2_attn_o_weight",
                "layers_2_attn_o", 2),
    weight_case("two tensors of one shape swapped", "spark",
                m.swapped_tensors("layers_0_attn_k_weight", "layers_0_attn_v_weight"), "layers_0_attn_k_weight",
                "layers_0_attn_k", 0),
    weight_case("gate and up swapped", "gemma3", m.swapped_tensors("layers_3_mlp_gate_weight", "layers_3_mlp_up_weight"),
                "layers_3_mlp_gate_weight", "layers_3_mlp_gate", 3),
    weight_case("query and key heads swapped", "spark",
                m.both(m.swapped_heads("layers_2_attn_q_weight", 8), m.swapped_heads("layers_2_attn_k_weight", 2)),
                "layers_2_attn_q_weight", "layers_2_attn_q", 2),
    weight_case("key heads swapped", "llama", m.swapped_heads("layers_1_attn_k_weight", 2), "layers_1_attn_k_weight",
                "layers_1_attn_k", 1),
    weight_case("value heads swapped", "gemma3", m.swapped_heads("layers_4_attn_v_weight", 2), "layers_4_attn_v_weight",
                "layers_4_attn_v", 4),
    weight_case("layers in the wrong order", "spark",
                m.swapped_layers(1, 2, ["attn_q", "attn_k", "attn_v", "attn_o", "mlp_gate", "mlp_up", "mlp_down"]),
                "layers_1_attn_q_weight", "layers_1_attn_q", 1),
    weight_case("rotary rows in pairs", "llama_gguf", m.interleaved_rotary_rows("layers_0_attn_q_weight", 4),
                "layers_0_attn_q_weight", "layers_0_attn_q", 0),
    weight_case("a head gate of zeros", "spark", m.zeroed("layers_3_attn_gate_weight"), "layers_3_attn_gate_weight",
                "layers_3_attn_heads_gated", 3),
    weight_case("a weight that overflowed f16", "llama", m.infinite("layers_2_mlp_gate_weight"), "layers_2_mlp_gate_weight",
                "layers_2_mlp_gate", 2),
    weight_case("an embedding row no prompt reads", "spark", m.scaled_row("embed_tokens_weight", 255, 1.01),
                "embed_tokens_weight", "embed_tokens_weight", None),
    weight_case("a row of an untied head", "llama", m.scaled_row("lm_head_weight", 7, 1.5), "lm_head_weight", "logits", None),
    weight_case("two experts swapped", "phimoe", m.swapped_experts(1, 0, 2), "layers_1_mlp_expert_0_gate_weight",
                "layers_1_mlp_down", 1),
    weight_case("one expert's gate", "phimoe", m.scaled_row("layers_2_mlp_expert_3_gate_weight", 5, 3.0),
                "layers_2_mlp_expert_3_gate_weight", "layers_2_mlp_down", 2),
    weight_case("rows of the router swapped", "phimoe", m.swapped_heads("layers_2_mlp_router_weight", 4),
                "layers_2_mlp_router_weight", "layers_2_mlp_router", 2),
    Case("a router that takes more experts for equals", "phimoe", m.scaled_inline("scalar_0_02_f32", 20.0),
         "layers_2_mlp_routing", 2, "scalar_0_02_f32"),
    Case("the bias of a LayerNorm", "phimoe", m.scaled_inline("layers_1_mlp_norm_bias", 1.2), "layers_1_mlp_norm", 1,
         "layers_1_mlp_norm_bias"),
    weight_case("a bias of the head", "phimoe", m.scaled_row("logits_bias", 3, 3.0), "logits_bias", "logits", None),
    Case("the limit of a gate", "phi3small", m.scaled_inline("scalar_1_5_f32", 1.1), "layers_0_mlp_act", 0, "scalar_1_5_f32"),
    Case("the factor of the logits", "phi3small", m.scaled_inline("scalar_0_5_f32", 1.1), "logits", None, "scalar_0_5_f32"),
    Case("a block-sparse stride off by one in the contract", "phi3small",
         m.contract(lambda c: c["masks"][0]["block_sparse"].update(vertical_stride=4)), "masks.blocksparse.block_sparse", 0, None,
         ("contract.json", "")),
    Case("a norm weight", "spark", m.scaled_inline("layers_1_mlp_norm_weight", 1.05), "layers_1_mlp_norm", 1,
         "layers_1_mlp_norm_weight"),
    Case("a key norm weight", "gemma3", m.scaled_inline("layers_2_attn_k_norm_weight", 1.05), "k_new_2", 2,
         "layers_2_attn_k_norm_weight"),
    Case("a key norm weight under a roll", "gemma3_gelu_node", m.scaled_inline("layers_2_attn_k_norm_weight", 1.05),
         "layers_2_attn_k_rope", 2, "layers_2_attn_k_norm_weight"),
    Case("epsilon", "spark", m.scaled_inline("scalar_1em06_f32", 1000), "layers_0_input_norm", 0, "scalar_1em06_f32"),
    Case("the embedding factor", "gemma3", m.scaled_inline("scalar_8_f32", 1.01), "x_scaled", None, "scalar_8_f32"),
    Case("rotary frequencies of another theta", "spark", m.host_table("rope_full_inv_freq", lambda f: f**1.1),
         "rope_full_inv_freq", 3, None, ("host.safetensors", "rope_full_inv_freq")),
    Case("the sign of the sine", "spark", m.sine_sign("layers_0_attn_q_rope"), "layers_0_attn_q_rope", 0),
    Case("the sign of the sine of keys", "spark", m.sine_sign("k_new_3"), "k_new_3", 3),
    Case("no attention scale", "spark", m.no_scale("layers_1_attn"), "layers_1_attn_heads", 1),
    Case("tanh for erf in the GELU operator", "spark_gelu_node", m.gelu_node("layers_0_mlp_act", "tanh"), "layers_0_mlp_act", 0),
    Case("erf for tanh in the GELU operator", "gemma3_gelu_node", m.gelu_node("layers_3_mlp_act", "none"), "layers_3_mlp_act", 3),
    Case("Tanh for Erf in the GELU's nodes", "spark", m.erf_to_tanh("layers_2_mlp_act"), "layers_2_mlp_act", 2),
    Case("a GELU without its cubic term", "gemma3", m.no_cubic_term("layers_1_mlp_act"), "layers_1_mlp_act", 1),
    Case("a sliding mask off by one", "spark", m.mask_off_by_one("sw", "layers_0_attn"), "layers_0_attn_heads", 0),
    Case("a full mask off by one", "spark", m.mask_off_by_one("full", "layers_3_attn"), "layers_3_attn_heads", 3),
    Case("ring slots off by one", "spark", m.slots_off_by_one(1, "layers_1_attn"), "layers_1_attn_heads", 1),
    Case("keys a slot away from their values", "spark", m.slots_off_by_one(3, "layers_3_attn", "k"), "layers_3_attn_heads", 3),
    Case("roll slots off by one", "spark_roll", m.slots_off_by_one(1, "layers_1_attn"), "layers_1_attn_heads", 1),
    Case("a roll without its newest entry", "spark_roll", m.returned_window_off_by_one("k_new_2"), "k_new_2", 2),
    Case("key and value caches swapped", "llama", m.swapped_caches("layers_1_attn", 1), "layers_1_attn_heads", 1),
    Case("no head gate", "spark", m.no_head_gate("layers_1_attn"), "layers_1_attn_heads_gated", 1),
    Case("no residual addition", "llama", m.no_residual("layers_2_attn_out", "layers_2_attn_o"), "layers_2_attn_out", 2),
    Case("no final norm", "llama", m.no_final_norm("layers_3_out"), "logits", None, "lm_head_weight"),
    Case("external data of another tensor", "spark", m.external_offset("layers_1_attn_k_weight", 16384), "layers_1_attn_k_weight",
         1),
    Case("windows off by one in the contract", "spark_small", m.contract(m.windows_off_by_one), "steps[0].caches[0].window", 0,
         None, ("contract.json", "")),
    Case("another attention factor in the contract", "spark", m.contract(lambda c: c["rope"][1].update(attention_factor=1.01)),
         "rope.full.attention_factor", 3, None, ("contract.json", "")),
    Case("embedding rows from another place", "spark",
         m.contract(lambda c: c["embedding"].update(offset=c["embedding"]["offset"] - 4096)), "embedding", None, None,
         ("contract.json", "")),
    Case("closed masks that are not closed", "spark", m.contract(lambda c: c.update(mask_fill=-1.0)), "layers_0_attn_heads", 0, None,
         ("contract.json", "")),
]
# Faults that stand out of the rounding of a graph that computes in f16.
F16_CASES = [
    case for case in CASES if case.bundle == "spark" and case.name in (
        "an exponent byte of a weight", "two tensors of one shape swapped", "query and key heads swapped",
        "layers in the wrong order", "a head gate of zeros", "rotary frequencies of another theta", "the sign of the sine",
        "the sign of the sine of keys", "no attention scale", "Tanh for Erf in the GELU's nodes", "a sliding mask off by one",
        "a full mask off by one", "ring slots off by one", "keys a slot away from their values", "no head gate",
        "external data of another tensor", "embedding rows from another place")
]


@pytest.fixture(scope="session")
def bundles(export):

    def bundle(name):
        golden, options, *context = BUNDLES[name]
        context = context[0] if context else 48
        return export(goldens[golden].checkpoint, "--context", context, "--q", f"1,{min(8, context - 2)}", *options)

    return bundle


@pytest.fixture
def verify(transload):

    def run(bundle, checkpoint, *options):
        """(exit code, report); a refusal has no report but its message."""
        result = transload("verify", bundle, "--checkpoint", checkpoint, "--json", "--quiet", *options)
        return result.returncode, json.loads(result.stdout) if result.stdout else result.stderr

    return run


def checkpoint_of(name):
    return goldens[BUNDLES[name][0]].checkpoint


def broken(case, bundles, tmp_path, bundle=None):
    copy = m.Bundle(bundles(bundle or case.bundle), tmp_path / "bundle")
    case.mutate(copy)
    return copy


def check_named(case, code, report):
    assert code == 3, report
    failure = report["failure"]
    assert (failure["tensor"], failure["layer"]) == (case.tensor, case.layer), failure
    if case.weight:
        assert case.weight in failure["weights"] + [failure["tensor"]], failure


@pytest.mark.parametrize("name", BUNDLES)
def test_a_good_bundle_passes(bundles, verify, name):
    code, report = verify(bundles(name), checkpoint_of(name))
    assert code == 0 and report["passed"] and report["failure"] is None, report
    assert report["graphs_not_run"] == [] and report["notes"] == (
        ["no window can be crossed: the largest context of the bundle holds 6 tokens, the window 8"] if name == "spark_small" else [])
    assert report["wrapped"] == (report["has_windows"] and name != "spark_small")
    assert report["head"]["rows"] == report["tokens"] > 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fault_with_the_old_digests_is_named_by_file(bundles, verify, tmp_path, case):
    code, report = verify(broken(case, bundles, tmp_path).folder, checkpoint_of(case.bundle))
    assert code == 3
    failure = report["failure"]
    step = failure["file"].startswith("step_") and case.stale[0].startswith("step_")
    assert step or failure["file"] == case.stale[0], failure
    assert failure["tensor"] == case.stale[1], failure
    assert report["steps"] == [] and report["layers"] == []  # nothing was run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fault_with_new_digests_is_named_by_layer_and_tensor(bundles, verify, tmp_path, case):
    bundle = broken(case, bundles, tmp_path)
    bundle.refresh_digests()
    check_named(case, *verify(bundle.folder, checkpoint_of(case.bundle)))


@pytest.mark.parametrize("case", F16_CASES, ids=lambda case: case.name)
def test_a_fault_is_named_among_the_rounding_of_f16(bundles, verify, tmp_path, case):
    bundle = broken(case, bundles, tmp_path, "spark_f16")
    bundle.refresh_digests()
    check_named(case, *verify(bundle.folder, checkpoint_of("spark_f16")))


def test_changes_that_mean_nothing_pass(bundles, verify, tmp_path):
    bundle = m.Bundle(bundles("spark"), tmp_path / "bundle")

    def edit(step):
        step.model.producer_name = "somebody else"
        step.model.graph.doc_string = "touched"

    bundle.edit_steps(edit)
    bundle.write_json("contract.json", dict(reversed(bundle.json("contract.json").items())))
    (bundle.folder / "notes.txt").write_text("mine")
    bundle.refresh_digests()
    code, report = verify(bundle.folder, checkpoint_of("spark"))
    assert code == 0 and report["notes"] == ["'notes.txt' is not in manifest.json: not checked"]


def test_external_data_past_the_end_of_its_file_is_refused_by_name(bundles, verify, tmp_path):
    bundle = m.Bundle(bundles("spark"), tmp_path / "bundle")
    m.external_offset("layers_1_attn_k_weight", 1 << 40)(bundle)
    bundle.refresh_digests()
    code, message = verify(bundle.folder, checkpoint_of("spark"))
    assert code == 1 and "weights.bin@" in message and "tensor 'layers_1_attn_k_weight'" in message


def test_a_file_that_is_missing_or_cut_short_is_named(bundles, verify, tmp_path):
    bundle = m.Bundle(bundles("spark"), tmp_path / "bundle")
    weights = bundle.folder / "weights.bin"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1])
    code, report = verify(bundle.folder, checkpoint_of("spark"))
    assert code == 3 and report["failure"]["file"] == "weights.bin" and f"expected {len(data)}" in report["failure"]["what"]
    weights.unlink()
    code, report = verify(bundle.folder, checkpoint_of("spark"))
    assert code == 3 and report["failure"]["file"] == "weights.bin" and "no such file" in report["failure"]["what"]


# A self-consistent bundle, right digests and all, of a model that one field of the config makes another.
CONFIGS = {
    "sliding_window": (lambda c: c.update(sliding_window=9), ("steps[0].caches[0].window", 0)),
    "rms_norm_eps": (lambda c: c.update(rms_norm_eps=1e-3), ("layers_0_input_norm", 0)),
    "rope_parameters": (lambda c: c["rope_parameters"]["full_attention"].update(rope_theta=1.1e6), ("rope_full_inv_freq", 5)),
    "query_pre_attn_scalar": (lambda c: c.update(query_pre_attn_scalar=c["query_pre_attn_scalar"] + 1), ("layers_0_attn_heads", 0)),
}


@pytest.mark.parametrize("field", CONFIGS)
def test_a_bundle_of_another_config_is_caught(export, verify, tmp_path, field):
    golden = goldens["gemma3"]
    edit, (tensor, layer) = CONFIGS[field]
    config = golden.config
    edit(config)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    bundle = export(golden.checkpoint, "--context", 48, "--q", "1,8", "--config", path)
    code, report = verify(bundle, golden.checkpoint)
    assert code == 3 and (report["failure"]["tensor"], report["failure"]["layer"]) == (tensor, layer), report["failure"]
    code, report = verify(bundle, golden.checkpoint, "--config", path)
    assert code == 0, report["failure"]


def test_a_golden_file_of_other_values_fails_and_says_which_side(bundles, verify, tmp_path):
    golden = goldens["spark"]
    tensors = {"tokens": golden.tokens, "logits": golden.logits, "hidden": golden.hidden, "pre_norm": golden.pre_norm,
               "k": golden.keys.copy(), "v": golden.values}
    tensors["k"][2] *= 1.01
    write_tensors(tmp_path / "golden.safetensors", tensors)
    code, report = verify(bundles("spark"), golden.checkpoint, "--golden", tmp_path)
    failure = report["failure"]
    assert code == 3 and (failure["tensor"], failure["layer"], failure["file"]) == ("k[2]", 2, "golden.safetensors")
    assert "reference and golden file differ" in failure["what"]
    code, report = verify(bundles("spark"), golden.checkpoint, "--golden", golden.checkpoint)
    assert code == 0 and report["golden_head"]["rows"] == golden.read
    assert all(layer["out"]["relative"] < 1e-5 for layer in report["golden_layers"])
