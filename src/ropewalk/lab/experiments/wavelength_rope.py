"""Logarithms of wavelengths as positions: are lines known on another instrument?"""

from __future__ import annotations

from ropewalk.lab.experiments.desk import SHAPE
from ropewalk.lab.experiments.experiment import Contrast, Experiment

_LOG, _INDEX = "wavelength_rope(period_min=0.2, period_max=3)", "rope(base=100, pairing=half)"
_LINEAR = "axial_rope(axes=1, base=100, pairing=half)"

EXPERIMENT = Experiment(
    name="wavelength_rope",
    slugs=("wavelength_rope",),
    claim="With the logarithm of its wavelength for the position of a pixel attention does not see a redshift, and what was "
    "learned on some instruments holds on others.",
    source="OmniSpectra, a wavelength-native foundation model for spectral representation learning. 2026; no arXiv id was found, "
    "and only the abstract was to be had",
    expected="Trained on two instruments, models at log-wavelengths name the kind of an object that a third one sees more often "
    "than models that count pixels.",
    settings={
        "task": "spectral_kind",
        "encodings": (_LOG, _INDEX, _LINEAR),
        "encoder": True,
        "train_length": 26,
        "eval_lengths": (24, 26),
        "shape": SHAPE,
        "tokens": 1_100_000,
        "batch_size": 64,
        "lr": 3e-3,
        "windows": 256,
    },
    contrasts=(
        Contrast(_LOG, _INDEX, "higher", (24, 26)),
        Contrast(_LOG, _LINEAR, "higher", (24, 26), decides=False, because="wavelengths themselves"),
        Contrast(_LINEAR, _INDEX, "higher", (24, 26), decides=False, because="wavelengths against numbers of pixels"),
    ),
    seconds=180,
    full={"train_length": 48, "eval_lengths": (24, 26, 32, 48, 64), "tokens": 6_000_000, "seeds": 5},
    limits="Made-up spectra of two lines on at most 26 pixels, of three kinds; nothing is measured of reconstruction, of "
    "resolution or of surveys. Pixels are up to a tenth of ln λ wide, which is coarse beside the ratios that tell kinds apart, "
    "and the grids of the three instruments are much alike; both favour counting pixels.",
)
