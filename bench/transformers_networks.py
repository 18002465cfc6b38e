"""The families of transformers, small and with random weights, as `from_pretrained` would give them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from foreign_networks import Network, images

WORDS, LENGTH, WIDTH = 512, 32, 256
_BODY = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 4 * WIDTH,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_BODY, "num_key_value_heads": 2, "head_dim": WIDTH // 4}
_GPT = {
    "vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_ctx": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_PAIR = {
    "vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 4 * WIDTH, "decoder_ffn_dim": 4 * WIDTH,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 2,
}  # fmt: skip
_T5 = {
    "vocab_size": WORDS, "d_model": WIDTH, "d_kv": 32, "d_ff": 4 * WIDTH, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
_STATES = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": 2, "pad_token_id": 0}
_PATCHES = {
    "image_size": 64, "patch_size": 8, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 4 * WIDTH,
}  # fmt: skip
_SOUND = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 4 * WIDTH,
    "conv_dim": (32, 32, 32), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "vocab_size": 40,
}  # fmt: skip
_DEEP = {"embedding_size": 32, "hidden_sizes": [32, 64, 128], "depths": [1, 1, 1]}

CAUSAL, ENCODER, PAIR, IMAGE, BARE = (
    "AutoModelForCausalLM", "AutoModelForSequenceClassification", "AutoModelForSeq2SeqLM",
    "AutoModelForImageClassification", "AutoModel",
)  # fmt: skip

_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    # encoders
    "bert": (ENCODER, _BODY),
    "roberta": (ENCODER, _BODY),
    "distilbert": (
        ENCODER, {"vocab_size": WORDS, "dim": WIDTH, "n_layers": 2, "n_heads": 4, "hidden_dim": 4 * WIDTH},
    ),
    "albert": (ENCODER, {**_BODY, "embedding_size": 64}),
    "electra": (ENCODER, {**_BODY, "embedding_size": 64}),
    "deberta-v2": (ENCODER, {**_BODY, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "mpnet": (ENCODER, _BODY),
    "convbert": (ENCODER, {**_BODY, "embedding_size": WIDTH}),
    "modernbert": (ENCODER, {**_BODY, "cls_token_id": 1, "sep_token_id": 2, "global_attn_every_n_layers": 2}),
    # decoders, which return a cache
    "gpt2": (CAUSAL, _GPT),
    "gpt_neo": (CAUSAL, {
        "vocab_size": WORDS, "hidden_size": WIDTH, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64,
        "attention_types": [[["global", "local"], 1]], "bos_token_id": 1, "eos_token_id": 2,
    }),
    "gpt_neox": (CAUSAL, _BODY),
    "gptj": (CAUSAL, {**_GPT, "rotary_dim": 16}),
    "codegen": (CAUSAL, {**_GPT, "rotary_dim": 16}),
    "opt": (CAUSAL, {**_BODY, "ffn_dim": 4 * WIDTH, "word_embed_proj_dim": WIDTH}),
    "bloom": (CAUSAL, {"vocab_size": WORDS, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4}),
    "falcon": (CAUSAL, {**_BODY, "ffn_hidden_size": 4 * WIDTH}),
    "llama": (CAUSAL, _GROUPED),
    "mistral": (CAUSAL, _GROUPED),
    "mixtral": (CAUSAL, {**_GROUPED, "num_local_experts": 4}),
    "gpt_oss": (CAUSAL, {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": (CAUSAL, _GROUPED),
    "qwen3": (CAUSAL, _GROUPED),
    "qwen3_moe": (CAUSAL, {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}),
    "gemma": (CAUSAL, _GROUPED),
    "gemma2": (CAUSAL, _GROUPED),
    "gemma3_text": (CAUSAL, _GROUPED),
    "phi": (CAUSAL, _BODY),
    "phi3": (CAUSAL, _GROUPED),
    "olmo": (CAUSAL, _BODY),
    "stablelm": (CAUSAL, _GROUPED),
    "starcoder2": (CAUSAL, _GROUPED),
    "cohere": (CAUSAL, _GROUPED),
    "granite": (CAUSAL, _GROUPED),
    # states instead of attention
    "mamba": (CAUSAL, {**_STATES, "state_size": 8}),
    "mamba2": (CAUSAL, {**_STATES, "num_heads": 8, "head_dim": 64, "state_size": 16, "chunk_size": 16, "n_groups": 1}),
    "falcon_mamba": (CAUSAL, {**_STATES, "state_size": 8}),
    # pairs
    "t5": (PAIR, _T5),
    "mt5": (PAIR, _T5),
    "bart": (PAIR, _PAIR),
    "pegasus": (PAIR, _PAIR),
    "marian": (PAIR, _PAIR),
    "m2m_100": (PAIR, _PAIR),
    "whisper": ("AutoModelForSpeechSeq2Seq", {
        **_PAIR, "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 64,
        "suppress_tokens": None, "begin_suppress_tokens": None,
    }),
    # sounds
    "wav2vec2": ("AutoModelForCTC", _SOUND),
    "hubert": ("AutoModelForCTC", _SOUND),
    # images
    "vit": (IMAGE, _PATCHES),
    "beit": (IMAGE, _PATCHES),
    "dinov2": (IMAGE, {**_PATCHES, "mlp_ratio": 4}),
    "swin": (IMAGE, {
        "image_size": 64, "patch_size": 4, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
    }),
    "convnext": (IMAGE, {"hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 2, 1]}),
    "resnet": (IMAGE, {**_DEEP, "layer_type": "basic"}),
    "regnet": (IMAGE, {"embedding_size": 32, "hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 2, 1],
                       "groups_width": 16}),
    "mobilevit": (IMAGE, {"image_size": 64}),
    "segformer": (IMAGE, {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1],
                          "decoder_hidden_size": 64}),
    "clip": (BARE, {
        "text_config": _BODY, "vision_config": _PATCHES, "projection_dim": 64,
    }),
}  # fmt: skip


def _build(family: str, task: str, options: dict[str, Any]) -> nn.Module:
    import transformers

    config = transformers.AutoConfig.for_model(family, **options)
    found: nn.Module = getattr(transformers, task).from_config(config)
    return found


def _words(batch: int) -> torch.Tensor:
    return torch.randint(3, WORDS, (batch, LENGTH))


def _inputs(family: str, task: str) -> Callable[[int], Any]:
    if family == "whisper":
        return lambda batch: {"input_features": torch.randn(batch, 16, 64), "decoder_input_ids": _words(batch)}
    if family == "clip":
        return lambda batch: {"input_ids": _words(batch), "pixel_values": torch.randn(batch, 3, 64, 64)}
    if family in ("wav2vec2", "hubert"):
        return lambda batch: {"input_values": torch.randn(batch, 3200)}
    if task == PAIR:
        return lambda batch: {"input_ids": _words(batch), "decoder_input_ids": _words(batch)}
    if task == IMAGE:
        return lambda batch: {"pixel_values": images(64)(batch)[0]}
    return lambda batch: {"input_ids": _words(batch)}


TRANSFORMERS = {
    f"transformers/{family}": Network("transformers", partial(_build, family, task, options), _inputs(family, task))
    for family, (task, options) in _FAMILIES.items()
}
