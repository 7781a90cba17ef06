"""Test a reader's kernels in the engine: right ones give its results, wrong ones and wrong types are named."""

import re

import pytest
from test_engine import TINY, apart, batch, parameters

from nanoeuler_lib import cuda, engine, ops
from nanoeuler_lib.engine import unfused
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT

pytestmark = [] if cuda.device() == "gpu" else [pytest.mark.compiler]

# Kernels as a reader of chapters 23 and 24 might write them.
MINE = r"""
extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void rmsnorm_forward(const float* x, const float* gain, float* y, float* rstd, int D, float eps) {
  __shared__ float r;
  const float* row = x + blockIdx.x * D;
  if (threadIdx.x == 0) {
    float squares = 0;
    for (int i = 0; i < D; i++) squares += row[i] * row[i];
    r = rsqrtf(squares / D + eps);
    rstd[blockIdx.x] = r;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < D; i += blockDim.x) y[blockIdx.x * D + i] = row[i] * r * gain[i];
}

extern "C" __global__ void swiglu_backward(const float* dy, const float* gate, const float* up, float* dgate,
                                           float* dup, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float s = 1 / (1 + expf(-gate[i]));
  dgate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
  dup[i] = dy[i] * gate[i] * s;
}
"""


def compiled(old="", new="", text=MINE, **options):
    assert old in text
    return cuda.module(text.replace(old, new) if old else text, **options)


@pytest.mark.full
@pytest.mark.parametrize("time", [1, 37])
def test_the_chapters_kernels_alone_make_a_model(time):
    """Run all composites unfused: no kernel of engine.cu takes part in loss and gradients."""
    one = compiled(text=MINE[: MINE.index('extern "C" __global__ void rmsnorm')])
    params, (tokens, targets) = parameters(), batch(time)
    with engine.use(one):
        model = engine.GPT(TINY, params)
        loss, grads = model.loss_and_gradients(tokens, targets)
        entries = [entry for entries in model._plan.lists.values() for entry in entries]
    expected_loss, expected = GPT(TINY, params).loss_and_gradients(tokens, targets)
    assert abs(loss - expected_loss) <= 1e-5 * expected_loss and apart(grads, expected) <= 1e-5
    ran = {re.sub(r".*: |,.*|<.*", "", str(entry)) for entry in entries}
    assert {"vector_add", "rmsnorm_forward", "swiglu_forward", "rope_forward"} <= ran
    assert not ran & {"add_rmsnorm", "rope_packed", "swiglu_packed"}
    again = model.loss_and_gradients(tokens, targets)[0]  # outside of `use`: fused again
    assert model._plan.program is model.program and abs(again - loss) <= 1e-5 * loss


@pytest.mark.full
def test_right_kernels_are_taken_and_used():
    mine = compiled()
    with engine.use(mine):
        assert unfused.kernels_in_use() is mine
        model = engine.GPT(TINY, parameters())
        model.losses(*batch(5))
        used = [e.launch for e in model._plan.lists["forward"] if "rmsnorm_forward" in str(e)]
        assert used and all(launch.library is mine.library for launch in used if hasattr(launch, "library"))
    assert unfused.kernels_in_use() is None


WRONG = [  # the book's file, or the kernels above; right code; wrong code; name in the message
    ("", "squares / D + eps", "squares / D", "rmsnorm_forward"),
    ("", "rsqrtf(squares / D + eps)", "rsqrtf(squares / (D + 1) + eps)", "rmsnorm_forward, the gradient of"),
    ("", "c[i] = a[i] + b[i]", "c[i] = a[i] - b[i]", "vector_add"),
    ("", "1 + gate[i] * (1 - s)", "1 + (1 - s)", "swiglu_backward, the gradient of"),
    ("", "gain[i];", "gain[0];", "rmsnorm_forward"),
    ("adamw", "{factor[0], step[0], step[1], step[2],", "{factor[0], step[0], step[2], step[1],", "adamw, "),
    ("adamw", "norm > limit ? limit / norm : 1.0f", "norm > limit ? 1.0f : limit / norm", "clip_factor, "),
    ("embedding", "if (now[k] == now[k + 1])", "if (now[k] <= now[k + 1])", "embedding_backward, "),
    ("reductions", "if (threadIdx.y < half) s[t] +=", "if (threadIdx.y < half / 2) s[t] +=", "column_sums, "),
]


@pytest.mark.full(but=["gain[0]"])
@pytest.mark.parametrize("file, old, new, said", WRONG)
def test_wrong_kernels_are_named(file, old, new, said):
    text = (cuda.KERNELS / f"{file}.cu").read_text("utf-8") if file else MINE
    module = compiled(old, new, text, checked=not file)
    module.signatures = {n: s for n, s in module.signatures.items() if n in unfused.FILE_OF}
    with pytest.raises(NanoEulerError, match=re.escape(f"with your {said}")), engine.use(module):
        pass


@pytest.mark.full
@pytest.mark.skipif(cuda.device() == "gpu", reason="the checker's words")
def test_a_kernel_with_a_race_or_a_wrong_index_is_told_by_the_checker():
    for old, new in (("  __syncthreads();\n", ""), ("if (i < n) c[i]", "if (i <= n) c[i]")):
        with pytest.raises(cuda.KernelError), engine.use(compiled(old, new)):
            pass


@pytest.mark.parametrize(
    "text, said",
    [
        ("void swiglu_forward(const float* gate, const float* up, float* y, float n) {}",
         "the kernel must be swiglu_forward(float* gate, float* up, float* y, int n), got swiglu_forward(float* gate, "
         "float* up, float* y, float n)"),
        ("void swiglu_foward(float* y) {}", "a kernel's name must be one of embedding_forward, "),
        ("void swiglu_foward(float* y) {}", "did you mean swiglu_forward?"),
    ],
)  # fmt: skip
def test_other_names_and_types_are_one_sentence(text, said):
    module = cuda.module(f'extern "C" __global__ {text}')
    with pytest.raises(NanoEulerError, match=re.escape(said)), engine.use(module):
        pass


@pytest.mark.full
def test_where_it_does_not_apply():
    mine, pair = compiled(), batch(5)
    with engine.use(mine):
        with pytest.raises(NanoEulerError, match=r"must be float32 with .*, got bfloat16"):
            engine.GPT(TINY, parameters(), precision="bfloat16").losses(*pair)
    with pytest.raises(NanoEulerError, match="no model on the engine ran"), engine.use(mine):
        GPT(TINY, parameters()).losses(*pair)
    with pytest.raises(NanoEulerError, match=r"engine.use\(kernels\)"), ops.use(kernels=mine):
        pass
    with ops.use(rmsnorm_forward=lambda *x: None), pytest.raises(NanoEulerError, match=r"ops.use\(rmsnorm_forward"):
        engine.GPT(TINY, parameters()).losses(*pair)
