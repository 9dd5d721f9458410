"""One question a file, named after it; the order here is that of the page."""

NAMES = (
    "rotate_float32",
    "rotate_bfloat16",
    "rotate_backward",
    "rotate_in_place",
    "tables",
    "layer",
    "low_rank",
    "denormals",
    "pointwise",
    "whole_row",
    "pope",
    "two_scores",
    "blocks",
    "decode",
    "train_step",
    "first_call",
    "peers",
)
