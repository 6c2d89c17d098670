"""Let SmolLM2 fill in a form: the answer is JSON that a schema accepts, drafted and verified like any other text.

It wants llguidance: `.venv/bin/pip install -e '.[grammar]'`.
"""

import json

import flexspec

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "country": {"type": "string", "maxLength": 30},
        "continent": {"enum": ["Africa", "America", "Asia", "Europe", "Oceania"]},
        "sights": {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 2, "maxItems": 3},
    },
    "required": ["city", "country", "continent", "sights"],
    "additionalProperties": False,
    # Without line breaks and indents, which a model may prolong for ever.
    "x-guidance": {"whitespace_flexible": False},
}


def main(model: str = "smollm2-135m") -> list[flexspec.Output]:
    llm = flexspec.compile(model, ssms=["ngram"])
    question = [{"role": "user", "content": "Tell me about Paris in JSON: city, country, continent and sights."}]

    # The text matches whatever the temperature, and a seed gives the same one with and without drafters.
    params = [
        flexspec.SamplingParams(grammar=flexspec.json_schema(SCHEMA), max_tokens=400),
        flexspec.SamplingParams(grammar=flexspec.json_schema(SCHEMA), max_tokens=400, temperature=0.8, seed=7),
        flexspec.SamplingParams(grammar=flexspec.regex("Paris is (in|near) [A-Z][a-z]{2,12}\\."), max_tokens=32),
    ]
    outputs = llm.generate([question] * len(params), params)
    for output in outputs[:2]:
        print(json.dumps(json.loads(output.text), indent=2, ensure_ascii=False))
    print(outputs[2].text)
    return outputs


if __name__ == "__main__":
    main()
