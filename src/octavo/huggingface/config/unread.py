"""Keys of a folder's files that change nothing, and a warning that names those that nothing here asks for.

What config.json's architecture asks for is seen as it is read (`Config.read`): no list can forget a key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from octavo.errors import shown
from octavo.huggingface.config import generation_config
from octavo.huggingface.tokenizer.added_tokens import CONFIG as TOKENIZER
from octavo.huggingface.tokenizer.added_tokens import MAP, MORE, ROLES
from octavo.io.safetensors import Checkpoint
from octavo.models.shared.config import Config, Unread, unread_inside
from octavo.models.shared.keys import is_in, log_unread

CONFIG_HARMLESS = (
    # What and where the model is.
    "architectures", "model_type", "transformers_version", "auto_map", "_name_or_path", "name_or_path", "_commit_hash",
    "torch_dtype", "dtype", "tokenizer_class", "processor_class", "bf16", "fp16", "fp32", "use_bfloat16", "init_device",
    "unsloth_*", "transformers.js_config", "is_llama_config",
    # Its labels, heads for other tasks, and what an answer holds.
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params", "output_*",
    "return_dict*", "summary_*", "classifier_*", "sparse_pred*", "is_encoder_decoder", "keys_to_ignore_at_inference",
    # Training.
    "initializer_*", "init_*", "*dropout*", "*_pdrop", "*_loss_coef", "*_loss_weight", "aux_loss_alpha", "seq_aux",
    "ep_size", "*_jitter_noise", "gradient_checkpointing", "pruned_heads", "rescale_prenorm_residual",
    "time_step_min", "time_step_max", "time_step_floor", "time_step_scale", "time_step_init_scheme", "altup_coef_clip",
    # How a program computes the same.
    "use_cache", "cache_implementation", "*attn_implementation*", "*flash_attn*", "pretraining_tp", "torchscript",
    "chunk_size", "chunk_size_feed_forward", "mamba_chunk_size", "use_mamba_kernels", "use_mambapy",
    "use_associative_scan", "residual_in_fp32", "*softmax_in_fp32", "apply_query_key_layer_scaling",
    "num_logits_to_keep", "slow_but_exact", "bias_dropout_fusion", "onnx_safe", "reference_compile", "rescale_every",
    "attn_mode", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap",
    # Which tensors there are, and their sizes: one that is missing, too many or of another shape is refused.
    "*bias", "no_bias", "add_bias_linear", "use_qk_norm", "num_ln_in_parallel_attn", "mlp_only_layers", "*mtp*",
    "num_nextn_predict_layers", "intermediate_size", "*_intermediate_size", "expand", "qk_head_dim", "kv_channels",
    "num_attention_heads", "num_key_value_heads", "time_step_rank", "padded_vocab_size", "vocab_size_per_layer_input",
    # How long texts were, or what is done with longer ones.
    "max_position_embeddings", "n_ctx", "seq_length", "model_max_length", "max_sequence_length", "max_window_layers",
    "use_dynamic_ntk", "use_logn_attn",
    # Said by another key, too.
    "original_max_position_embeddings", "initial_context_length", "experts_per_token", "_sliding_window_pattern",
    "moe_norm_min", "embedding_fraction", "learned_pos_emb", "norm_type", "mamba_norm_before_gate",
    # Tokens, which the tokenizer's files and `eos_token_id` say, and parts of other kinds.
    "*_token_id", "*_token_ids", "*_token_index", "im_*_id", "vision_*", "audio_*", "image_*", "video_*", "mm_*",
    "projector_*", "multimodal_projector_*", "spatial_merge_size", "text_config",
    *generation_config.HARMLESS, "do_sample",
)
"""Keys of config.json that say nothing of which numbers come; * stands for anything."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **generation_config.NEUTRAL, "temperature": (1,), "top_k": (50,), "top_p": (1,), "repetition_penalty": (1,),
    "partial_rotary_factor": (1,), "decoder_sparse_step": (1,), "topk_method": ("noaux_tc",),
}
"""Keys that change nothing with these values, which older files have in config.json."""
BESIDE = {
    "rope_parameters": ("rope_scaling", "rope_theta"),
    "quantization": ("quantization_config",),
    "sliding_window": ("sliding_window_size",),
    "use_sliding_window": ("sliding_window", "max_window_layers", "layer_types"),
    "layer_types": ("full_attn_idxs", "sliding_window_pattern"),
    "sliding_window_layout": ("sliding_window_size",),
    "attn_temperature_tuning": ("attn_scale", "floor_scale"),
    "new_decoder_architecture": ("multi_query",),
    "block_auto_adjust_ff_dim": ("block_ffn_dim_multiplier", "block_multiple_of"),
    "per_layer_config": ("attention_k_eq_v", "num_global_key_value_heads", "global_head_dim"),
    "no_rope_layers": ("no_rope_layer_interval",),
    "mlp_layer_types": ("first_k_dense_replace", "moe_layer_freq"),
}
"""Keys that say nothing, or nothing more, where the first one was asked for."""
HARMLESS_INSIDE = ("mrope_interleaved", "attn_impl", "moe_jitter_eps", "hidden_size")
"""Keys of objects in config.json that say nothing, beside those that say nothing anywhere."""
BESIDE_INSIDE = {
    "attention_factor": ("factor", "mscale", "mscale_all_dim"),
    "alpha": ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
}
"""Keys of the rope's objects that say nothing more where the first one is there."""
OF_EXPERTS = (
    "*expert*", "moe_*", "n_group", "topk_*", "norm_topk_prob", "routed_scaling_factor", "scoring_func",
    "first_k_dense_replace",
)
"""Keys that say nothing where there are no experts."""
TOKENIZER_READ = (
    "added_tokens_decoder", "chat_template", "model_max_length", "add_bos_token", "add_eos_token", *MORE,
    *(f"{role}_token" for role in ROLES),
)
TOKENIZER_HARMLESS = (
    "unsloth_*",
    "tokenizer_class", "processor_class", "auto_map", "name_or_path", "model_input_names", "is_local",
    "local_files_only", "backend", "tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file",
    "model_specific_special_tokens", "fix_mistral_regex", "legacy", "use_fast", "from_slow", "trust_remote_code",
    # What tokenizer.json, or the model's file beside it, says.
    "add_prefix_space", "trim_offsets", "sp_model_kwargs", "do_lower_case", "do_basic_tokenize", "never_split",
    "strip_accents", "tokenize_chinese_chars", "remove_space", "keep_accents", "split_special_tokens", "errors",
    # How batches are filled, and how transformers shows text.
    "padding_side", "padding", "pad_to_multiple_of", "pad_token_type_id", "truncation", "truncation_side", "max_length",
    "stride", "truncation_strategy", "clean_up_tokenization_spaces", "spaces_between_special_tokens",
    "use_default_system_prompt", "response_schema", "return_token_type_ids", "*_token", "*_tokens",
)
"""Keys of tokenizer_config.json and special_tokens_map.json that change no token of a text."""


def log_unread_keys(checkpoint: Checkpoint, whole: Config, config: Config, *, experts: bool) -> None:
    """A warning for each file that says what nothing here asks for.

    whole, config  config.json, and what was read of it; `experts`: whether the model has any
    """
    read = config.read.union(*(also for key, also in BESIDE.items() if key in config.read))
    text = whole.values.get("text_config")
    values = {**whole.values, **(text if isinstance(text, dict) else {})}
    known = is_in(CONFIG_HARMLESS if experts else (*CONFIG_HARMLESS, *OF_EXPERTS))
    left = {key: value for key, value in values.items() if not known(key) and not _is_neutral(key, value)}
    said = {key: value for key, value in left.items() if key not in read}
    for key in left.keys() - said.keys():
        said |= {found.place: found.value for found in unread_inside(left[key])
                 if not known(found.key) and not _says_nothing(found, config.read)}
    _log(whole.file, said, ())
    for name in (TOKENIZER, MAP):
        _log(checkpoint.path(name), checkpoint.json(name) or {}, (*TOKENIZER_READ, *TOKENIZER_HARMLESS))


def _says_nothing(found: Unread, read: Collection[str]) -> bool:
    """Whether a key inside an object changes nothing, or is said by another one."""
    other = found.place.removeprefix("text_config.").removeprefix("rope_scaling.")
    return (
        is_in(HARMLESS_INSIDE)(found.key)
        or _is_neutral(found.key, found.value)
        or any(found.key in also for key, also in BESIDE_INSIDE.items() if key in found.beside)
        or any(f"{place}.{other}" in read for place in ("rope_parameters", "rope_parameters.full_attention"))
    )


def _is_neutral(key: str, value: Any) -> bool:
    full = key == "layer_types" and isinstance(value, list) and set(map(str, value)) == {"full_attention"}
    return full or value in NEUTRAL.get(key, ())


def _log(file: str, values: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """What says nothing, null, false, 0 and empty values, is not named."""
    is_known = is_in(known)
    left = [key for key, value in values.items() if value not in (None, False, "", [], {}) and not is_known(key)]
    log_unread(file, [f"{shown(key)[1:-1]} {shown(str(values[key])[:40])[1:-1]}" for key in left])
