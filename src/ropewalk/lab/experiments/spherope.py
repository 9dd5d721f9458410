"""SpheRoPE: do pictures of a model of flat pictures wrap around?"""

from __future__ import annotations

from ropewalk.lab.experiments.experiment import Contrast, Experiment

# Without a reference R-RoPE is the rotation of flat pictures on the same pairs.
_FLAT, _SPHERE = "r_rope(base=16)", "spherope(widths=(8, 8, 8), base=16, time_position=0)"
_ALL_SPHERE = "spherope(widths=(8, 8, 8), base=16, time_position=0, max_error=0)"

EXPERIMENT = Experiment(
    name="spherope",
    slugs=("spherope",),
    claim="Whole turns for fast pairs of width and places on a sphere for slow ones make a diffusion transformer of flat "
    "pictures generate panoramas without a seam, without training.",
    source="SpheRoPE: Zero-Shot Optimization-Free 360° Panorama Generation with Spherical RoPE. arXiv 2606.32033, 2026",
    expected="Of the pictures made by a denoiser of windows, more are without a seam when the same denoiser has SpheRoPE instead "
    "of flat positions.",
    settings={
        "task": "panorama",
        "encodings": (_FLAT,),
        "encoder": True,
        "train_length": 26,
        "eval_lengths": (26,),
        "shape": {"hidden_size": 48, "num_layers": 2, "num_heads": 2},
        "tokens": 900_000,
        "batch_size": 32,
        "lr": 4e-3,
        "windows": 128,
    },
    drop_in={_SPHERE: _FLAT, _ALL_SPHERE: _FLAT},
    contrasts=(
        Contrast(_SPHERE, _FLAT, "higher", (26,)),
        Contrast(
            _SPHERE,
            _ALL_SPHERE,
            "higher",
            (26,),
            decides=False,
            because="whole turns, against places on a sphere alone",
        ),
    ),
    seconds=60,
    full={"tokens": 10_000_000, "seeds": 5, "shape": {"hidden_size": 96, "num_layers": 4, "num_heads": 4}, "lr": 2e-3},
    limits="Pictures of 3 × 26 cells of brightness, made by a denoiser of masked cells with 56,000 parameters. The base is 16, "
    "so that, as in the published models, the fast pairs of width take nearly whole turns over it. Guidance, noise and circular "
    "decoding are not part of it, and poles, the first and last row, are never seen in training.",
)
