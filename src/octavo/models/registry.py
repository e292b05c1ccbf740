"""The architectures that Octavo runs, and from a file to its model."""

from __future__ import annotations

from typing import Any

from octavo.errors import ModelError
from octavo.io.gguf import GGUFFile
from octavo.models import (
    afmoe,
    apertus,
    arcee,
    arctic,
    arwkv7,
    baichuan,
    bailingmoe,
    bailingmoe2,
    bert,
    bitnet,
    bloom,
    chatglm,
    codeshell,
    cohere2,
    command_r,
    dbrx,
    deci,
    deepseek,
    deepseek2,
    dots1,
    ernie4_5,
    ernie4_5_moe,
    eurobert,
    exaone,
    exaone4,
    exaone_moe,
    falcon,
    falcon_h1,
    gemma,
    gemma2,
    gemma3,
    gemma3n,
    gemma4,
    gemma_embedding,
    glm4,
    glm4moe,
    gpt2,
    gpt_oss,
    gptj,
    gptneox,
    granite,
    granitehybrid,
    granitemoe,
    grovemoe,
    hunyuan_dense,
    hunyuan_moe,
    hunyuan_vl,
    internlm2,
    jais,
    jais2,
    jamba,
    jina_bert_v2,
    jina_bert_v3,
    kimi_linear,
    lfm2,
    lfm2moe,
    llama,
    llama4,
    llama_embed,
    maincoder,
    mamba,
    mamba2,
    mimo2,
    minicpm,
    minicpm3,
    minimax_m2,
    mistral3,
    mistral4,
    modern_bert,
    mpt,
    nemotron,
    nemotron_h,
    nemotron_h_moe,
    neo_bert,
    nomic_bert,
    nomic_bert_moe,
    olmo,
    olmo2,
    olmoe,
    openelm,
    orion,
    paddleocr,
    pangu_embedded,
    phi2,
    phi3,
    phimoe,
    plamo,
    plamo2,
    plamo3,
    plm,
    qwen,
    qwen2,
    qwen2moe,
    qwen2vl,
    qwen3,
    qwen3moe,
    qwen3next,
    qwen3vl,
    qwen3vlmoe,
    qwen35,
    qwen35moe,
    refact,
    rwkv6,
    rwkv7,
    seed_oss,
    smallthinker,
    smollm3,
    stablelm,
    starcoder,
    starcoder2,
    step35,
    xverse,
)
from octavo.models.architecture import Architecture, ModelSpec
from octavo.models.cache_scales import cache_tensors
from octavo.models.refusal import require_model, unknown
from octavo.models.weights import check_tensors

ARCHITECTURES: dict[str, Architecture[Any]] = {
    module.ARCH.name: module.ARCH
    for module in (
        llama, qwen2, qwen3, qwen3moe, phi3, gemma3, mistral3, qwen2moe, olmo2, granite, granitemoe, smollm3,
        qwen3vl, qwen3vlmoe, qwen2vl, gemma, bitnet, minicpm, mistral4, exaone_moe, phimoe, minicpm3, mimo2,
        step35,
        gemma2, cohere2, starcoder2, glm4, gpt_oss, deepseek2, llama4, bert, nomic_bert,
        nomic_bert_moe, modern_bert, gemma_embedding, glm4moe, seed_oss, ernie4_5,
        ernie4_5_moe, exaone4, hunyuan_dense, hunyuan_moe, minimax_m2, olmoe, dots1, gemma4, jina_bert_v2, afmoe,
        lfm2, lfm2moe, qwen3next, qwen35, qwen35moe, gemma3n,
        granitehybrid, nemotron_h, nemotron_h_moe, falcon_h1, mamba2, mamba, jamba,
        apertus, arcee, nemotron, phi2, stablelm, command_r, gpt2,
        gptneox, falcon, bailingmoe2, internlm2, exaone, deepseek, starcoder, olmo,
        chatglm, deci, bailingmoe, mpt, bloom, baichuan,
        qwen, gptj, jais2, orion, xverse, codeshell, pangu_embedded, maincoder,
        smallthinker, dbrx, openelm, arctic, plamo, refact, eurobert, llama_embed,
        jina_bert_v3, neo_bert, jais, plm, grovemoe, kimi_linear, plamo2, plamo3, rwkv7, arwkv7, rwkv6,
        hunyuan_vl, paddleocr,
    )
}  # fmt: skip
"""By GGUF's `general.architecture`."""


def read_model(file: GGUFFile) -> ModelSpec:
    """The model in a file.

    Raises ModelError for a file that holds none, and for an architecture that is unknown, incomplete or contradictory.
    """
    require_model(file)
    name = file.metadata.get_str("general.architecture")
    if name not in ARCHITECTURES:
        raise ModelError(unknown(name, ARCHITECTURES, "architecture "), file=file.path)
    architecture = ARCHITECTURES[name]
    file, metadata = architecture.updated(file)
    shapes = {info.name: tuple(info.shape) for info in file.tensors.values()}
    hparams = architecture.read(metadata, file.path, shapes)
    check_tensors(file, architecture.tensors(hparams) | cache_tensors(hparams))
    return ModelSpec(file, architecture, hparams)
