"""The commands that measure and change model files: perplexity's base logits, kld."""
import json
import os
import signal
import subprocess
import time

import pytest

from conftest import PROGRAM, ROOT

GOLDEN = os.path.join(ROOT, "tests", "data", "golden")


def golden(name):
    return os.path.join(GOLDEN, name)


def run(*args, check=True):
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def run_json(*args):
    return json.loads(run(*args, "--json").stdout)


# llama-perplexity 0c1e5709 on llama.base and the weights of llama-kld-Q4_0.gguf in F32, without flash
# attention, f32 caches.
PEER = json.load(open(golden("llama-kld.json"), encoding="utf8"))


def test_kld_agrees_with_llama_cpp():
    ours = run_json("kld", "-m", golden("llama-kld-Q4_0.gguf"), "--base", golden("llama.base"), "--exact")
    assert ours["n"] == 126
    for name in "kld", "ln_ppl_ratio", "top1", "p_diff", "p_diff_rms":
        assert ours[name]["value"] == pytest.approx(PEER[name]["value"], abs=1e-4), name
        assert ours[name]["error"] == pytest.approx(PEER[name]["error"], abs=1e-4), name
    for name in "ppl", "ppl_base":
        assert ours[name]["value"] == pytest.approx(PEER[name]["value"], rel=1e-5), name
    for percent, value in PEER["kld_percentiles"].items():
        assert ours["kld_percentiles"][percent] == pytest.approx(value, abs=1e-4), percent


def test_base_logits_are_llama_cpps(tmp_path):
    """The file that perplexity writes is llama-perplexity's: equal head and tokens, and codes that differ by
    one at most, where two f32 engines fall to both sides of a rounding."""
    import numpy as np
    out = tmp_path / "own.base"
    run("perplexity", "-m", golden("llama.gguf"), "-f", golden("ppl_text.txt"), "-c", 128, "--chunks", 2,
        "--exact", "--base", out)
    ours, peer = out.read_bytes(), open(golden("llama.base"), "rb").read()
    head = 20 + 4 * 2 * 128
    assert len(ours) == len(peer) and ours[:head] == peer[:head]

    def rows(b):
        x = np.frombuffer(b[head:], np.uint16).reshape(126, 4 + 512)
        return np.ascontiguousarray(x[:, :4]).view(np.float32), x[:, 4:].astype(int)

    (scales, codes), (peer_scales, peer_codes) = rows(ours), rows(peer)
    np.testing.assert_allclose(scales, peer_scales, rtol=1e-5)
    assert abs(codes - peer_codes).max() <= 1


def test_kld_refuses_another_vocabulary():
    done = run("kld", "-m", golden("qwen2.gguf"), "--base", golden("llama.base"), check=False)
    assert done.returncode == 1 and "vocabulary of 512" in done.stderr


def test_kld_needs_a_base():
    assert run("kld", "-m", golden("llama.gguf"), check=False).returncode == 2


def tensors(path):
    return {t["name"]: t["type"] for t in run_json("info", path)["tensors"]}


@pytest.mark.parametrize("mix", ["Q4_0", "Q4_K_M", "Q6_K"])
def test_quantize_makes_llama_cpps_mixes(mix, tmp_path):
    """The golden files of these types were made by llama-quantize: same tensors, types and size."""
    out = tmp_path / "q.gguf"
    run("quantize", golden("llama-q-Q8_0.gguf"), out, mix.lower())
    assert tensors(out) == tensors(golden(f"llama-q-{mix}.gguf"))
    assert os.path.getsize(out) == os.path.getsize(golden(f"llama-q-{mix}.gguf"))


def test_quantize_refuses_what_was_quantised(tmp_path):
    out = tmp_path / "q.gguf"
    done = run("quantize", golden("llama-q-Q4_0.gguf"), out, "Q4_K_M", check=False)
    assert done.returncode == 1 and "--allow-requantize" in done.stderr
    assert os.listdir(tmp_path) == []
    assert "errors add up" in run("quantize", golden("llama-q-Q4_0.gguf"), out, "F16", "--allow-requantize").stderr
    assert out.exists()


def test_quantize_to_f32_keeps_the_predictions(tmp_path):
    out = tmp_path / "f32.gguf"
    run("quantize", golden("llama-kld-Q4_0.gguf"), out, "F32", "--allow-requantize")
    ours = run_json("kld", "-m", out, "--base", golden("llama.base"), "--exact")
    assert ours["kld"]["value"] == pytest.approx(PEER["kld"]["value"], abs=1e-5)


def test_rule_and_wrong_usage(tmp_path):
    out = tmp_path / "q.gguf"
    run("quantize", golden("llama.gguf"), out, "Q8_0", "--tensor-type", r"blk\.[01]\.ffn_=Q4_0")
    types = tensors(out)
    assert types["blk.1.ffn_up.weight"] == "Q4_0" and types["blk.2.ffn_up.weight"] == "Q8_0"
    assert run("quantize", golden("llama.gguf"), out, check=False).returncode == 2
    assert run("quantize", golden("llama.gguf"), out, "Q9", check=False).returncode == 1


@pytest.mark.parametrize("level", ["ref", "c", "avx2", "avx512"])
def test_rotated_files_run(level, tmp_path):
    """A rotated file predicts as well as a plain Q4_0 one, on every level; without the key it is nonsense."""
    if subprocess.run([PROGRAM, "devices"], env={**os.environ, "OB_CPU": level}, capture_output=True).returncode:
        pytest.skip(f"this CPU has no level {level}")
    env = {**os.environ, "OB_CPU": level}
    out, bad = tmp_path / "rotated.gguf", tmp_path / "unmarked.gguf"
    run("rotate", golden("llama.gguf"), out)
    bad.write_bytes(out.read_bytes().replace(b"onebit.hadamard_q4_0", b"onebit.hadamard_q4_1"))
    kld = {}
    for path in out, bad:
        done = subprocess.run([PROGRAM, "kld", "-m", path, "--base", golden("llama.base"), "--exact", "--json", "--device",
                               "cpu"], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        kld[path] = json.loads(done.stdout)["kld"]["value"]
    plain = PEER["kld"]["value"]
    assert kld[out] < 2 * plain
    assert kld[bad] > 10 * plain


def test_rotating_quantised_files(tmp_path):
    """What has 4 bits already is only rotated again where that is asked for, as with quantize."""
    q4, out = tmp_path / "q4.gguf", tmp_path / "rotated.gguf"
    run("quantize", golden("llama.gguf"), q4, "Q4_0")
    done = subprocess.run([PROGRAM, "rotate", q4, out], capture_output=True, text=True)
    assert done.returncode == 1 and "--allow-requantize" in done.stderr and not out.exists()
    assert "their errors add up" in run("rotate", q4, out, "--allow-requantize").stderr


@pytest.mark.parametrize("act4", ["off", "all"])
@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_rotated_files_run_on_vulkan(name, act4, tmp_path):
    """The software driver gives the CPU's answer for rotated files, dense and of experts; with 4-bit activations codes are the
    same for the same inputs, but a rounding before them may turn one into its neighbour."""
    if "llvmpipe" not in run("devices").stdout:
        pytest.skip("no software driver of Vulkan")
    out = tmp_path / "rotated.gguf"
    run("rotate", golden(f"{name}.gguf"), out)
    ppl = {}
    for device in "cpu", "lavapipe":
        done = run("perplexity", "-m", out, "-f", golden("ppl_text.txt"), "-c", 128, "--chunks", 2, "--act4", act4, "--exact",
                   "--json", "--device", device)
        ppl[device] = json.loads(done.stdout)["perplexity"]
    assert ppl["lavapipe"] == pytest.approx(ppl["cpu"], rel=1e-5 if act4 == "off" else 0.02)


def test_other_rotations_are_refused(tmp_path):
    out = tmp_path / "rotated.gguf"
    run("rotate", golden("llama.gguf"), out)
    raw = out.read_bytes()
    key = b"onebit.hadamard_q4_0" + (5).to_bytes(4, "little")
    assert raw.count(key + (32).to_bytes(4, "little")) == 1
    out.write_bytes(raw.replace(key + (32).to_bytes(4, "little"), key + (64).to_bytes(4, "little")))
    done = run("run", "-m", out, "--device", "cpu", "hello", check=False)
    assert done.returncode == 1 and "Hadamard-rotated" in done.stderr


def test_a_device_that_cannot_rotate_refuses(tmp_path):
    out = tmp_path / "rotated.gguf"
    run("rotate", golden("llama.gguf"), out)
    done = run("run", "-m", out, "--device", "null", "hello", check=False)
    assert done.returncode == 1 and "Hadamard-rotated" in done.stderr


@pytest.mark.parametrize("name", ["llama", "qwen35moe", "glm47flash"])
def test_imatrix_and_its_use(name, tmp_path):
    """Every quantisable matrix of a dense, a hybrid MoE and an MLA model gets importance."""
    im, out = tmp_path / "im.gguf", tmp_path / "q.gguf"
    run("imatrix", "-m", golden(f"{name}.gguf"), "-f", golden("ppl_text.txt"), "-o", im, "-c", 128, "--chunks", 2, "-q")
    seen = {n.removesuffix(".in_sum2") for n in tensors(im) if n.endswith(".in_sum2")}
    matrices = {n for n, t in tensors(golden(f"{name}.gguf")).items()
                if n.endswith(".weight") and n.startswith("blk.") and
                any(k in n for k in ("attn_q", "attn_output", "ffn_up", "ffn_down", "ffn_gate", "ssm_out", "attn_k_b"))
                and "norm" not in n}
    assert matrices <= seen
    said = run("quantize", golden(f"{name}.gguf"), out, "Q4_0", "--imatrix", im).stdout
    assert "with importance" in said


def test_imatrix_figures(tmp_path):
    """One embedding of the first layer, squared and averaged, by hand: the first norm's output."""
    import numpy as np
    from gguf import GGUFReader
    im = tmp_path / "im.gguf"
    run("imatrix", "-m", golden("llama.gguf"), "-f", golden("ppl_text.txt"), "-o", im, "-c", 64, "--chunks", 1, "-q")
    ids = json.loads(subprocess.run([PROGRAM, "tokenize", "-m", golden("llama.gguf"), "--json"], text=True,
                                    capture_output=True, input=open(golden("ppl_text.txt")).read()).stdout)[:64]
    model = {t.name: t.data for t in GGUFReader(golden("llama.gguf")).tensors}
    x = model["token_embd.weight"][ids].astype(np.float64)
    x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * model["blk.0.attn_norm.weight"]
    got = {t.name: t.data for t in GGUFReader(im).tensors}
    assert got["blk.0.attn_q.weight.counts"].item() == 64
    np.testing.assert_allclose(got["blk.0.attn_q.weight.in_sum2"].ravel(), (x * x).sum(axis=0), rtol=1e-4)


@pytest.mark.parametrize("args", [("quantize", "SRC", "DST", "Q2_K", "-t", "1", "--allow-requantize"),
                                  ("quantize", "SRC", "DST", "F32", "--allow-requantize"),
                                  ("convert", "SRC", "DST", "--force")])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_leaves_nothing_behind(args, how, model, tmp_path):
    """Not the half-written file; and what was there before stays."""
    dst = tmp_path / "dst.gguf"
    argv = [PROGRAM, *({"SRC": model, "DST": str(dst)}.get(a, a) for a in args), "-q"]
    for _ in range(5):  # on a busy machine the signal may come too late
        dst.write_bytes(b"what was there")
        p = subprocess.Popen(argv, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        while p.poll() is None and len(os.listdir(tmp_path)) < 2:
            time.sleep(0.001)
        p.send_signal(how)
        p.communicate(timeout=60)
        if p.returncode:
            break
    assert os.listdir(tmp_path) == ["dst.gguf"]
    if p.returncode:
        assert p.returncode == -how and dst.read_bytes() == b"what was there"
    else:  # it was quicker than the signal
        assert run("info", dst).returncode == 0
    if args[3:4] == ("Q2_K",):
        assert p.returncode == -how


def test_an_output_that_is_there_is_replaced(tmp_path):
    out = tmp_path / "q.gguf"
    run("quantize", golden("llama.gguf"), out, "Q8_0")
    said = run("quantize", golden("llama.gguf"), out, "Q4_0").stderr
    assert "is there already" in said and tensors(out)["blk.0.ffn_up.weight"] == "Q4_0"
    assert os.listdir(tmp_path) == ["q.gguf"]
    # its own source, too: what is read stays until the new file is complete
    run("quantize", out, out, "F16", "--allow-requantize")
    assert tensors(out)["blk.0.ffn_up.weight"] == "F16"


def h32():
    """The normalised Walsh-Hadamard matrix of 32 points, by Sylvester's doubling."""
    import numpy as np
    h = np.ones((1, 1))
    while len(h) < 32:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(32)


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "qwen35moe", "glm47flash"])
def test_what_rotate_does_to_each_tensor(name, tmp_path):
    """Row D1: the mark; unrotated weights are the source's within Q4_0's error; norms, routers, embeddings and the
    output matrix are not rotated."""
    import numpy as np
    from gguf import GGUFReader, dequantize
    out, plain = tmp_path / "rotated.gguf", tmp_path / "plain.gguf"
    run("rotate", golden(f"{name}.gguf"), out)
    run("quantize", golden(f"{name}.gguf"), plain, "Q4_0", "--pure")
    read = lambda path: {t.name: (t.tensor_type.name, dequantize(t.data, t.tensor_type).astype(np.float64)) for t in GGUFReader(path).tensors}
    field = GGUFReader(out).fields["onebit.hadamard_q4_0"]
    assert field.contents() == 32
    source, rotated, unrotated = read(golden(f"{name}.gguf")), read(out), read(plain)
    assert list(source) == list(rotated)
    error = lambda x, t: np.sqrt(((x - source[t][1]) ** 2).sum() / (source[t][1] ** 2).sum())
    n = 0
    for t, (kind, x) in rotated.items():
        if kind == "Q4_0" and t != "token_embd.weight":
            back = (x.reshape(-1, 32) @ h32()).reshape(x.shape)
            assert error(back, t) < 1.1 * max(0.08, error(unrotated[t][1], t)), t
            assert error(x, t) > 1, t  # it was rotated
            n += 1
        else:
            assert error(x, t) < 0.1 if kind in ("Q4_0", "Q5_K", "Q5_0", "Q5_1") else error(x, t) < 0.03, (t, kind)
        if "norm" in t or t.endswith("ffn_gate_inp.weight"):
            assert kind == "F32" and np.array_equal(x, source[t][1]), t
        if t in ("token_embd.weight", "output.weight"):
            assert error(x, t) < 0.1, t
    assert n >= 4 * 2, n


@pytest.mark.parametrize("value,source,words", [(16, "rotated", "Hadamard-rotated"), (0, "rotated", "Hadamard-rotated"),
                                                (32, "q8", "Hadamard"), ("text", "rotated", "Hadamard-rotated")])
def test_wrong_marks_are_told(value, source, words, tmp_path):
    """A value that is not 32, or of another type, and a mark on a file without Q4_0: an error, never nonsense."""
    from gguf import GGUFReader, GGUFWriter
    made, out = tmp_path / "made.gguf", tmp_path / "marked.gguf"
    if source == "rotated":
        run("rotate", golden("llama.gguf"), made)
    else:
        run("quantize", golden("llama.gguf"), made, "Q8_0")
    r = GGUFReader(made)
    w = GGUFWriter(out, "llama")
    for key, field in r.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "onebit.hadamard_q4_0"):
            continue
        w.add_key_value(key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    if isinstance(value, str):
        w.add_string("onebit.hadamard_q4_0", value)
    else:
        w.add_int32("onebit.hadamard_q4_0", value)
    for t in r.tensors:
        w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    done = run("run", "-m", out, "--device", "cpu", "--raw", "-n", "2", "hello", check=False)
    assert done.returncode == 1 and words in done.stderr, done.stderr


def test_recipes(tmp_path):
    """Row D8: steps of 1,024 tokens for rotated mixtures, where that was measured better: not on the CPU. The user's word wins."""
    out, dense = tmp_path / "rotated.gguf", tmp_path / "dense.gguf"
    run("rotate", golden("qwen3moe.gguf"), out)
    run("rotate", golden("llama.gguf"), dense)

    def bench(path, *options):
        done = run("bench", "-m", path, "--device", "cpu", "-p", 1024, "-n", 0, "-r", 1, "--json", *options)
        return json.loads(done.stdout)["n_ubatch"], "recipe rotated-moe-ub1024" in done.stderr
    assert bench(out) == (512, False)
    assert bench(out, "-ub", "1024") == (1024, False)
    assert bench(out, "--no-recipes") == (512, False)
    assert bench(dense) == (512, False)
    assert bench(golden("qwen3moe.gguf")) == (512, False)
    assert "recipe rotated-moe-ub1024 on cpu: not used" in run("info", out).stdout
    assert "recipe rotated" not in run("info", dense).stdout
