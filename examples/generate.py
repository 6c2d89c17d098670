"""Generate text with SmolLM2 and prompt lookup, a batch at once and one prompt streamed."""

import flexspec


def main(model: str = "smollm2-135m") -> list[flexspec.Output]:
    llm = flexspec.compile(model, ssms=["ngram"])

    prompts = ["The capital of France is", "def fibonacci(n):"]
    outputs = llm.generate(prompts, flexspec.SamplingParams(max_tokens=48))
    for prompt, output in zip(prompts, outputs, strict=True):
        print(f"{prompt}{output.text}\n  [{output.finish_reason}, {output.stats.tokens_per_step:.2f} tokens a step]\n")

    # Sampled, with a seed: the text is the same with and without drafters.
    params = flexspec.SamplingParams(temperature=0.8, top_p=0.9, seed=7, max_tokens=48)
    for chunk in llm.stream([{"role": "user", "content": "Tell me something about lighthouses."}], params):
        print(chunk.text, end="", flush=True)
    print()
    return outputs


if __name__ == "__main__":
    main()
