"""The vision-language families of the bridge, at tiny size, and prompts with images and videos for them."""

from __future__ import annotations

import torch
import transformers

PAD, FILM_OPENS, FILM_CLOSES, IMAGE, VIDEO, OPENS, CLOSES = 0, 58, 59, 60, 61, 62, 63
SPECIAL = [FILM_OPENS, FILM_CLOSES, IMAGE, VIDEO, OPENS, CLOSES]

TEXT = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": None,
}
TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": OPENS,
    "vision_end_token_id": CLOSES,
}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
SMALL = {"depth": 1, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 1, "spatial_merge_size": 2}

# name -> (configuration, model, text, vision, what the configuration says besides)
FAMILIES = {
    "qwen2_vl": (
        "Qwen2VLConfig",
        "Qwen2VLForConditionalGeneration",
        {"rope_parameters": ROPE},
        {"embed_dim": 32, "hidden_size": 64},
        TOKENS,
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLConfig",
        "Qwen2_5_VLForConditionalGeneration",
        {"rope_parameters": ROPE},
        {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 32, "window_size": 16, "tokens_per_second": 2},
        TOKENS,
    ),
    "qwen3_vl": (
        "Qwen3VLConfig",
        "Qwen3VLForConditionalGeneration",
        {"rope_parameters": {**ROPE, "mrope_section": [4, 2, 2]}, "head_dim": 16},
        {
            "hidden_size": 32,
            "out_hidden_size": 64,
            "intermediate_size": 32,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 16,
        },
        TOKENS,
    ),
    "glm4v": (
        "Glm4vConfig",
        "Glm4vForConditionalGeneration",
        {"rope_parameters": {**ROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}},
        {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 32, "image_size": 32},
        {
            "image_token_id": IMAGE,
            "video_token_id": VIDEO,
            "video_start_token_id": FILM_OPENS,
            "video_end_token_id": FILM_CLOSES,
            "image_start_token_id": OPENS,
            "image_end_token_id": CLOSES,
        },
    ),
}


def config(name):
    """Return a tiny configuration."""
    kind, _, text, vision, own = FAMILIES[name]
    values = {k: v for k, v in TEXT.items() if k not in ("pad_token_id", "bos_token_id", "eos_token_id")}
    made = getattr(transformers, kind)(text_config={**values, **text}, vision_config={**SMALL, **vision}, **own)
    for part in (made, made.text_config):
        part.pad_token_id, part.bos_token_id, part.eos_token_id = PAD, 1, None
    return made


def model(name):
    """Return a tiny model in eval mode, the same at every call."""
    torch.manual_seed(0)
    made = getattr(transformers, FAMILIES[name][1])(config(name)).eval()
    made.generation_config.eos_token_id = None
    made.generation_config.pad_token_id = PAD
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:  # larger than a fresh model's: positions have to show in the logits
                parameter.mul_(8.0)
    return made


class Prompt:
    """Tokens of a row, written block by block, with what a processor says of them."""

    def __init__(self, name, seed=0):
        self.apart, self.glm = name in ("qwen3_vl", "glm4v"), name == "glm4v"
        self.generator = torch.Generator().manual_seed(seed)
        self.ids, self.types, self.images, self.videos, self.seconds = [], [], [], [], []

    def text(self, n):
        self.ids += torch.randint(2, 58, (n,), generator=self.generator).tolist()
        self.types += [0] * n
        return self

    def image(self, rows, columns):
        """Patches, which are merged 2 x 2."""
        self._run(IMAGE, 1, rows * columns // 4)
        self.images.append([1, rows, columns])
        return self

    def video(self, frames, rows, columns, seconds=1.0):
        if self.glm:
            self._one(FILM_OPENS)
        for _ in range(frames if self.apart else 1):
            self._run(IMAGE if self.glm else VIDEO, 2, rows * columns // 4 * (1 if self.apart else frames))
            if self.apart:
                self.text(2)  # the time of the frame
        if self.glm:
            self._one(FILM_CLOSES)
        self.videos.append([frames, rows, columns])
        self.seconds.append(seconds)
        return self

    def _one(self, token):
        self.ids.append(token)
        self.types.append(0)

    def _run(self, token, kind, tokens):
        self.ids += [OPENS, *[token] * tokens, CLOSES]
        self.types += [0, *[kind] * tokens, 0]


def batch(name, *prompts, side="left", pixels=False):
    """Return what a processor would: rows filled up, grids and seconds of all rows one after the other."""
    longest = max(len(p.ids) for p in prompts)
    ids, types, mask = (torch.zeros(len(prompts), longest, dtype=torch.long) for _ in range(3))
    for row, prompt in enumerate(prompts):
        n = len(prompt.ids)
        here = slice(longest - n, longest) if side == "left" else slice(0, n)
        ids[row, here], types[row, here], mask[row, here] = torch.tensor(prompt.ids), torch.tensor(prompt.types), 1
    given = {"input_ids": ids, "mm_token_type_ids": types, "attention_mask": mask}
    generator = torch.Generator().manual_seed(9)
    for kind, values in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        grids = [grid for p in prompts for grid in getattr(p, f"{kind}s")]
        if grids:
            given[f"{kind}_grid_thw"] = torch.tensor(grids)
            if pixels:
                given[values] = torch.randn(sum(t * h * w for t, h, w in grids), 3 * 4 * 4, generator=generator)
    if name == "qwen2_5_vl" and "video_grid_thw" in given:
        given["second_per_grid_ts"] = torch.tensor([s for p in prompts for s in p.seconds])
    return given


def prompts(name):
    """Return four rows: an image and a video, text alone, two images, a video. No grid is square."""
    return (
        Prompt(name, 1).text(3).image(4, 6).text(2).video(2, 4, 8).text(3),
        Prompt(name, 2).text(9),
        Prompt(name, 3).text(2).image(6, 4).text(1).image(2, 8).text(4),
        Prompt(name, 4).video(3, 2, 12, 0.5).text(5),
    )


def seen(name):
    """Return rows that a model of the family can look at in one pass: GLM-4V takes images or videos, not both."""
    both = Prompt(name, 1).text(3).image(4, 6).text(2)
    both = both.image(2, 10) if name == "glm4v" else both.video(2, 4, 8)
    return both.text(3), Prompt(name, 2).text(9), Prompt(name, 3).text(2).image(6, 4).text(4)


def filmed(name):
    """Return rows with a video and with text alone."""
    return Prompt(name, 4).text(2).video(3, 2, 12, 0.5).text(5), Prompt(name, 5).text(7)
