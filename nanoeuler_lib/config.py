"""Dataclasses for the settings of a model and of a training run, with their validation, and the presets.

Checkpoints store these settings, and old checkpoints must stay readable. So every field added since version 0.1
declares the value to assume for older files, which lack it: `name: str = field(default=..., metadata={"before": ...})`.
Every file has the fields without `before`.
"""

from dataclasses import asdict, dataclass, field, fields

from nanoeuler_lib import __version__
from nanoeuler_lib.errors import NanoEulerError, did_you_mean, short

LARGEST = 2**53 - 1  # the largest integer that every JSON reader keeps


class _Config:
    def to_dict(self) -> dict:
        """Return the fields as a dict that JSON can store."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict):
        """Build a configuration from a dict read from a file. Raises NanoEulerError on missing or unknown names."""
        if not isinstance(values, dict):
            raise NanoEulerError(f"{cls.__name__} must be an object with its fields, got {type(values).__name__}")
        names = {f.name for f in fields(cls)}
        before = {f.name: f.metadata["before"] for f in fields(cls) if "before" in f.metadata}
        if unknown := sorted(set(values) - names):
            raise NanoEulerError(
                f"{cls.__name__} has {short(unknown)}, unknown to nanoeuler {__version__}: upgrade to the version that "
                "wrote it"
            )
        if missing := sorted(names - set(values) - set(before)):
            raise NanoEulerError(f"{cls.__name__} lacks {short(missing)}: the file was truncated or edited")
        return cls(**before | values)

    def _expect_numbers(self, integers: dict, numbers: dict) -> None:
        """Raise NanoEulerError unless each field lies in its range (low, high); `integers` must be integers."""
        for name, (low, high) in (integers | numbers).items():
            value, whole = getattr(self, name), name in integers
            if (
                isinstance(value, bool)
                or not isinstance(value, int if whole else (int, float))
                or not low <= value <= high
            ):
                most = "2^53 - 1" if high == LARGEST else f"{high:.10g}"
                kind = "an integer" if whole else "a number"
                raise NanoEulerError(f"{name} must be {kind} from {low:g} to {most}, got {short(value)}")

    def _expect_choice(self, name: str, known: tuple) -> None:
        if (value := getattr(self, name)) not in known:
            hint = did_you_mean(value, known) if isinstance(value, str) else ""
            raise NanoEulerError(f"{name} must be one of {', '.join(known)}, got {short(value)}{hint}")


class _Shape(_Config):
    @property
    def head_dim(self) -> int:
        """Return C, the width of a head."""
        return self.dim // self.heads

    @property
    def qkv_dim(self) -> int:
        """Return (H + 2G) C, the number of columns of the packed query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def _expect_shape(self, **more: dict) -> None:
        self._expect_numbers({name: (1, high) for name, high in (MOST | more).items()}, dict(norm_eps=(1e-12, 1)))
        if self.dim % self.heads:
            raise NanoEulerError(f"dim must be a multiple of heads ({self.heads}), got {self.dim}")


# the largest value of each dimension
MOST = dict(dim=2**20, heads=2**12, layers=2**12, context=2**20, vocab_size=2**24, ffn=2**24)


@dataclass(frozen=True)
class ModelConfig(_Shape):
    """Describe a model's shape; letters: see the notation page. Raises NanoEulerError if a dimension does not fit."""

    dim: int  # D, width of the residual stream
    heads: int  # H, query heads
    kv_heads: int  # G, key/value heads; each serves H/G query heads
    layers: int  # L
    context: int  # maximum sequence length, in tokens
    vocab_size: int  # V
    predict: int = 4  # K, prediction heads: head k predicts token t+1+k
    ffn: int = 0  # F, width of the feed-forward layers; 0 means 8D/3 rounded up to a multiple of 8
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    def __post_init__(self):
        if self.ffn == 0 and type(self.dim) is int:
            object.__setattr__(self, "ffn", -(-8 * self.dim // 24) * 8)
        self._expect_shape(kv_heads=2**12, predict=2**8)
        self._expect_numbers({}, dict(rope_theta=(1, 1e9)))
        if self.head_dim % 2:
            raise NanoEulerError(
                f"head width dim/heads must be even, because RoPE rotates pairs of numbers, got {self.head_dim}"
            )
        if self.heads % self.kv_heads:
            raise NanoEulerError(f"heads must be a multiple of kv_heads ({self.kv_heads}), got {self.heads}")

    @classmethod
    def from_dict(cls, values: dict) -> "ModelConfig | GPT2Config":
        """Build a configuration: a `GPT2Config` if "architecture" is "gpt2". Raises NanoEulerError on wrong names."""
        if isinstance(values, dict) and values.get("architecture") == GPT2Config.architecture:
            return GPT2Config.from_dict({name: x for name, x in values.items() if name != "architecture"})
        return super().from_dict(values)


@dataclass(frozen=True)
class GPT2Config(_Shape):
    """Describe the shape of a GPT-2 (`model.gpt2`). Raises NanoEulerError if a dimension does not fit."""

    dim: int
    heads: int  # each has its own keys and values
    layers: int
    context: int
    vocab_size: int
    ffn: int = 0  # F; 0 means 4D
    norm_eps: float = 1e-5

    architecture = "gpt2"
    predict = 1
    rope_theta = None  # no rotation: position embeddings are learned
    kv_heads = property(lambda self: self.heads)

    def __post_init__(self):
        if self.ffn == 0 and type(self.dim) is int:
            object.__setattr__(self, "ffn", 4 * self.dim)
        self._expect_shape()

    def to_dict(self) -> dict:
        """Return the fields and the architecture as a dict that JSON can store."""
        return {"architecture": self.architecture, **asdict(self)}


OPTIMIZERS = "adamw", "muon"


@dataclass(frozen=True)
class TrainConfig(_Config):
    """Hold the settings of a training run. Raises NanoEulerError if a value is out of range."""

    steps: int = 2000
    batch: int = 16  # sequences per batch
    accumulate: int = 1  # batches per step, whose gradients are averaged
    rate: float = 3e-3  # peak learning rate
    rate_end: float = 0.1  # the cosine ends at this fraction of the peak
    warmup: int = 100  # steps of linear warm-up
    beta1: float = 0.9
    beta2: float = 0.95
    adam_eps: float = 1e-8
    decay: float = 0.1  # weight decay, matrices only
    clip: float = 1.0  # maximum gradient norm over all parameters; 0 means no clipping
    later_heads: float = 0.25  # loss weight of prediction heads 1..K-1; head 0 has weight 1
    seed: int = 0
    valid_fraction: float = 0.1  # fraction of the text held out for validation, at its end
    valid_every: int = 100  # steps between validations
    sample_every: int = 500  # steps between samples; 0 means none
    save_every: int = 500  # steps between checkpoints
    optimizer: str = field(default="adamw", metadata={"before": "adamw"})  # or "muon", for matrices inside blocks
    # steps between checkpoints that are never deleted; 0: only the latest ones are kept
    keep_every: int = field(default=0, metadata={"before": 0})
    # whether a document longer than a row continues in further rows; older runs did not read the rest of a document
    cut_documents: bool = field(default=True, metadata={"before": False})

    def __post_init__(self):
        ones, zeros = "steps batch accumulate valid_every save_every", "warmup seed sample_every keep_every"
        integers = dict.fromkeys(ones.split(), (1, LARGEST)) | dict.fromkeys(zeros.split(), (0, LARGEST))
        ranges = dict(rate=(0, 10), rate_end=(0, 1), beta1=(0, 1), beta2=(0, 1), adam_eps=(0, 1), decay=(0, 10))
        self._expect_numbers(integers, ranges | dict(clip=(0, 1e9), later_heads=(0, 100), valid_fraction=(0, 0.9)))
        if not isinstance(self.cut_documents, bool):
            raise NanoEulerError(f"cut_documents must be true or false, got {short(self.cut_documents)}")
        self._expect_choice("optimizer", OPTIMIZERS)
        for name in ("beta1", "beta2"):
            if getattr(self, name) == 1:
                raise NanoEulerError(f"{name} must be below 1, got 1: the moment would never change")


# the settings that may change when a run is resumed
CHANGEABLE = "steps", "rate", "valid_every", "sample_every", "save_every", "keep_every"

KL_ESTIMATORS = "reward", "k2", "k3"


@dataclass(frozen=True)
class RewardConfig(_Config):
    """Hold the settings of GRPO (`training.rewards`). Raises NanoEulerError if a value is out of range."""

    reward: str = "route"  # name of one of the run's verifiers
    group: int = 8  # answers per question, which are compared with one another; divides the answers of a step
    answer_tokens: int = 48  # maximum answer length; an unfinished answer has reward 0
    updates: int = 1  # steps per set of sampled answers; from the second step on the ratio is not 1
    clip_ratio: float = 0.2  # a ratio outside 1 +- this gets no gradient that would move it further out; 0: no clipping
    kl: float = 0.0  # beta, weight of the KL penalty to the initial model
    kl_by: str = "reward"  # estimator of the KL penalty

    def __post_init__(self):
        most = 2**31 - 1
        integers = dict(group=(2, most), answer_tokens=(1, most), updates=(1, most))
        self._expect_numbers(integers, dict(clip_ratio=(0, 1), kl=(0, 100)))
        if self.kl_by == "k1":
            raise NanoEulerError("kl_by must be reward, k2 or k3, got k1, whose gradient is 0 on average")
        self._expect_choice("kl_by", KL_ESTIMATORS)


# `large` is `base` made wider and deeper by the same factor, 4/3 (22 layers for 21.3). Head width, vocabulary, context
# and prediction heads are the same, so kernels, tokens and bits per byte can be compared. It has 264 million
# parameters, whose training state takes 4.4 GiB in bfloat16 (18 bytes per parameter); a step of 64 x 512 tokens takes
# 53 teraflops, 2.27 times as many as for `base`. Chapter 32.
PRESETS = {
    "small": dict(dim=128, heads=4, kv_heads=2, layers=4, context=128, vocab_size=512, predict=4),
    "big": dict(dim=384, heads=6, kv_heads=2, layers=6, context=256, vocab_size=1024, predict=4),
    "base": dict(dim=768, heads=12, kv_heads=4, layers=16, context=512, vocab_size=4096, predict=4),
    "large": dict(dim=1024, heads=16, kv_heads=4, layers=22, context=512, vocab_size=4096, predict=4),
}

SFT_DEFAULTS = {"steps": 2000, "rate": 1e-3, "warmup": 50}  # defaults of fine-tuning that differ from TrainConfig's
# no weight decay in DPO: it would move the model away from its reference by itself
DPO_DEFAULTS = {"steps": 500, "rate": 1e-4, "warmup": 20, "decay": 0.0}
# short intervals in GRPO: a step takes long, because the model first generates its answers
GRPO_DEFAULTS = {"steps": 300, "batch": 64, "rate": 1e-4, "warmup": 10, "decay": 0.0, "valid_every": 20}
GRPO_DEFAULTS |= {"sample_every": 50, "save_every": 50}
SFT_DATA_SEED = 201  # seed of the stories; pretraining uses seeds 101 to 104
DPO_DATA_SEED = 211
GRPO_DATA_SEED = 221


def preset(name: str, **changes) -> ModelConfig:
    """Return the model shape of this name, with some fields changed. Raises NanoEulerError on an unknown name."""
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS)
        raise NanoEulerError(f"preset must be one of {', '.join(PRESETS)}, got {short(name)}{hint}")
    return ModelConfig(**{**PRESETS[name], **changes})
