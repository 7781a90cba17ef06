"""What a model and a training run are made of: dataclasses, the presets, and their validation.

Files keep both, and must be readable for as long as they exist. So a field that is added to one of them says what its
absence means in a file that is older: `name: str = field(default=..., metadata={"before": ...})`. Fields without
`before` are those of version 0.1; every file has them.
"""

from dataclasses import asdict, dataclass, field, fields

from nanoeuler_lib import __version__
from nanoeuler_lib.errors import NanoEulerError, did_you_mean, short

LARGEST = 2**53 - 1  # the largest integer that every JSON reader keeps


class _Config:
    """What all configurations have: checks of their numbers, and the way into a file and back."""

    def to_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict):
        """Build from a mapping read from a file. Raises NanoEulerError on missing or unknown names."""
        if not isinstance(values, dict):
            raise NanoEulerError(f"{cls.__name__} is {type(values).__name__}, expected an object with its fields")
        names = {f.name for f in fields(cls)}
        before = {f.name: f.metadata["before"] for f in fields(cls) if "before" in f.metadata}
        if unknown := sorted(set(values) - names):
            raise NanoEulerError(
                f"{cls.__name__} has {short(unknown)}, unknown to nanoeuler {__version__}: expected the newer version "
                "that wrote it"
            )
        if missing := sorted(names - set(values) - set(before)):
            raise NanoEulerError(f"{cls.__name__} lacks {short(missing)}: truncated or edited")
        return cls(**before | values)

    def _expect_numbers(self, integers: dict, numbers: dict) -> None:
        """Raise NanoEulerError unless each named field is an integer, or a number, in its range: (lowest, highest)."""
        for name, (low, high) in (integers | numbers).items():
            value, whole = getattr(self, name), name in integers
            if (
                isinstance(value, bool)
                or not isinstance(value, int if whole else (int, float))
                or not low <= value <= high
            ):
                most = "2^53 - 1" if high == LARGEST else f"{high:.10g}"
                kind = "a whole number" if whole else "a number"
                raise NanoEulerError(f"{name} is {short(value)}, expected {kind} from {low:g} to {most}")

    def _expect_choice(self, name: str, known: tuple) -> None:
        """Raise NanoEulerError unless a field is one of these words."""
        if (value := getattr(self, name)) not in known:
            hint = did_you_mean(value, known) if isinstance(value, str) else ""
            raise NanoEulerError(f"{name} is {short(value)}, expected one of {', '.join(known)}{hint}")


class _Shape(_Config):
    """What shapes of both kinds of model have."""

    @property
    def head_dim(self) -> int:
        """C, the width of a head."""
        return self.dim // self.heads

    @property
    def qkv_dim(self) -> int:
        """Columns of the packed query, key and value projection: (H + 2G) C."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def _expect_shape(self, **more: dict) -> None:
        """Raise NanoEulerError unless the numbers of a shape are in their ranges and fit together."""
        self._expect_numbers({name: (1, high) for name, high in (MOST | more).items()}, dict(norm_eps=(1e-12, 1)))
        if self.dim % self.heads:
            raise NanoEulerError(f"dim is {self.dim}, expected a multiple of heads ({self.heads})")


# the largest numbers that a shape may have
MOST = dict(dim=2**20, heads=2**12, layers=2**12, context=2**20, vocab_size=2**24, ffn=2**24)


@dataclass(frozen=True)
class ModelConfig(_Shape):
    """The shape of a model. Letters are those of the book's notation page.

    Raises NanoEulerError when the numbers do not fit together.
    """

    dim: int  # D, width of the residual stream
    heads: int  # H, query heads
    kv_heads: int  # G, key/value heads; each serves H/G query heads
    layers: int  # L
    context: int  # the longest sequence, in tokens
    vocab_size: int  # V
    predict: int = 4  # K, prediction heads: head k predicts token t+1+k
    ffn: int = 0  # F; 0 means 8D/3 rounded up to a multiple of 8
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    def __post_init__(self):
        if self.ffn == 0 and type(self.dim) is int:
            object.__setattr__(self, "ffn", -(-8 * self.dim // 24) * 8)
        self._expect_shape(kv_heads=2**12, predict=2**8)
        self._expect_numbers({}, dict(rope_theta=(1, 1e9)))
        if self.head_dim % 2:
            raise NanoEulerError(f"head width dim/heads is {self.head_dim}, expected an even number (RoPE turns pairs)")
        if self.heads % self.kv_heads:
            raise NanoEulerError(f"heads is {self.heads}, expected a multiple of kv_heads ({self.kv_heads})")

    @classmethod
    def from_dict(cls, values: dict) -> "ModelConfig | GPT2Config":
        """Build from a mapping read from a file. Raises NanoEulerError on missing or unknown names.

        A file that names the architecture "gpt2" holds a `GPT2Config`; files of this one name none.
        """
        if isinstance(values, dict) and values.get("architecture") == GPT2Config.architecture:
            return GPT2Config.from_dict({name: x for name, x in values.items() if name != "architecture"})
        return super().from_dict(values)


@dataclass(frozen=True)
class GPT2Config(_Shape):
    """The shape of a GPT-2 (`model.gpt2`): layer norms, biases, GELU, learned positions, one tied head.

    Raises NanoEulerError when the numbers do not fit together.
    """

    dim: int
    heads: int  # each with keys and values of its own
    layers: int
    context: int
    vocab_size: int
    ffn: int = 0  # F; 0 means 4D
    norm_eps: float = 1e-5

    architecture = "gpt2"
    predict = 1
    rope_theta = None  # nothing turns: positions are learned
    kv_heads = property(lambda self: self.heads)

    def __post_init__(self):
        if self.ffn == 0 and type(self.dim) is int:
            object.__setattr__(self, "ffn", 4 * self.dim)
        self._expect_shape()

    def to_dict(self) -> dict:
        return {"architecture": self.architecture, **asdict(self)}


OPTIMIZERS = "adamw", "muon"


@dataclass(frozen=True)
class TrainConfig(_Config):
    """How a model is trained. Raises NanoEulerError on values that make no sense."""

    steps: int = 2000
    batch: int = 16  # sequences per step
    accumulate: int = 1  # a step's gradient is the mean over this many batches
    rate: float = 3e-3  # peak learning rate
    rate_end: float = 0.1  # the cosine ends at this fraction of the peak
    warmup: int = 100  # steps of linear warm-up
    beta1: float = 0.9
    beta2: float = 0.95
    adam_eps: float = 1e-8
    decay: float = 0.1  # weight decay, matrices only
    clip: float = 1.0  # largest global norm of the gradient; 0 means no clipping
    later_heads: float = 0.25  # loss weight of prediction heads 1..K-1; head 0 has weight 1
    seed: int = 0
    valid_fraction: float = 0.1  # the last part of the text, held out
    valid_every: int = 100  # steps between validations
    sample_every: int = 500  # steps between samples; 0 means none
    save_every: int = 500  # steps between checkpoints
    optimizer: str = field(default="adamw", metadata={"before": "adamw"})  # or "muon", for matrices inside blocks
    # steps between checkpoints that stay; 0: only the last ones do
    keep_every: int = field(default=0, metadata={"before": 0})
    # whether documents longer than a row go on in further rows; in older runs the rest of a document was not read
    cut_documents: bool = field(default=True, metadata={"before": False})

    def __post_init__(self):
        ones, zeros = "steps batch accumulate valid_every save_every", "warmup seed sample_every keep_every"
        integers = dict.fromkeys(ones.split(), (1, LARGEST)) | dict.fromkeys(zeros.split(), (0, LARGEST))
        ranges = dict(rate=(0, 10), rate_end=(0, 1), beta1=(0, 1), beta2=(0, 1), adam_eps=(0, 1), decay=(0, 10))
        self._expect_numbers(integers, ranges | dict(clip=(0, 1e9), later_heads=(0, 100), valid_fraction=(0, 0.9)))
        if not isinstance(self.cut_documents, bool):
            raise NanoEulerError(f"cut_documents is {short(self.cut_documents)}, expected true or false")
        self._expect_choice("optimizer", OPTIMIZERS)
        for name in ("beta1", "beta2"):
            if getattr(self, name) == 1:
                raise NanoEulerError(f"{name} is 1, expected a number below 1: the moment would never move")


# the settings of a run that may change when it is resumed
CHANGEABLE = "steps", "rate", "valid_every", "sample_every", "save_every", "keep_every"

KL_ESTIMATORS = "reward", "k2", "k3"


@dataclass(frozen=True)
class RewardConfig(_Config):
    """How a model learns from rewards (`training.rewards`). Raises NanoEulerError on values that make no sense."""

    reward: str = "route"  # name of a verifier, of those handed to the run
    group: int = 8  # answers to each prompt, which are compared with one another; divides the answers of a step
    answer_tokens: int = 48  # an answer that has not ended by then is cut, and has reward 0
    updates: int = 1  # steps that each set of answers serves; from the second on the ratio is not 1
    clip_ratio: float = 0.2  # a ratio beyond 1 -+ this gets no gradient that would take it further; 0: none is clipped
    kl: float = 0.0  # beta, weight of the distance to the model that the run began with
    kl_by: str = "reward"  # its estimator

    def __post_init__(self):
        most = 2**31 - 1
        integers = dict(group=(2, most), answer_tokens=(1, most), updates=(1, most))
        self._expect_numbers(integers, dict(clip_ratio=(0, 1), kl=(0, 100)))
        if self.kl_by == "k1":
            raise NanoEulerError("kl_by is k1, whose gradient is 0 on average: expected reward, k2 or k3")
        self._expect_choice("kl_by", KL_ESTIMATORS)


# `large` is `base` wider and deeper by the same factor, 4/3 (22 layers for 21.3): same head width, vocabulary, context
# and prediction heads, so that kernels, tokens and bits per byte compare. 264 million parameters: 4.4 GiB of states in
# bfloat16 (18 bytes each); a step of 64 x 512 tokens has 53 teraflops, 2.27 times those of base. Chapter 32.
PRESETS = {
    "small": dict(dim=128, heads=4, kv_heads=2, layers=4, context=128, vocab_size=512, predict=4),
    "big": dict(dim=384, heads=6, kv_heads=2, layers=6, context=256, vocab_size=1024, predict=4),
    "base": dict(dim=768, heads=12, kv_heads=4, layers=16, context=512, vocab_size=4096, predict=4),
    "large": dict(dim=1024, heads=16, kv_heads=4, layers=22, context=512, vocab_size=4096, predict=4),
}

SFT_DEFAULTS = {"steps": 2000, "rate": 1e-3, "warmup": 50}  # where fine-tuning departs from TrainConfig
# of preferences: 0.1 of weight decay would move a model away from its reference by itself
DPO_DEFAULTS = {"steps": 500, "rate": 1e-4, "warmup": 20, "decay": 0.0}
# of rewards: answers are drawn anew for each step, and a step takes long
GRPO_DEFAULTS = {"steps": 300, "batch": 64, "rate": 1e-4, "warmup": 10, "decay": 0.0, "valid_every": 20}
GRPO_DEFAULTS |= {"sample_every": 50, "save_every": 50}
SFT_DATA_SEED = 201  # of its stories: pretraining has 101 to 104
DPO_DATA_SEED = 211
GRPO_DATA_SEED = 221


def preset(name: str, **changes) -> ModelConfig:
    """The named model shape with some of its numbers changed. Raises NanoEulerError on an unknown name."""
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS)
        raise NanoEulerError(f"preset is {short(name)}, expected one of {', '.join(PRESETS)}{hint}")
    return ModelConfig(**{**PRESETS[name], **changes})
