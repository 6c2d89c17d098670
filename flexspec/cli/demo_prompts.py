"""The prompts of `flexspec demo`: answers that repeat some of the question, where lookup pays, code, and one that repeats nothing."""

DEMO_PROMPTS: tuple[str, ...] = (
    "Summarise this paragraph in two sentences:\n\n"
    "The lighthouse on Gull Island was built in 1857 after three ships were lost on the rocks in a single winter. "
    "For more than a century its lamp was tended by hand, and the keeper lived on the island with his family. "
    "In 1983 the lamp was made automatic, and today the keeper's house is a small museum that visitors reach by boat.",
    "Correct the spelling mistakes and give the whole text back:\n\n"
    "The lighthouse keeper climed the narrow stairs every evening. He lit the lamp, wrote the wether into his book, "
    "and watched the ships pass untill the morning. In forty years he never mised a single night.",
    "Answer with a quote from the text: When was the lighthouse built, and why?\n\n"
    "The lighthouse on Gull Island was built in 1857 after three ships were lost on the rocks in a single winter. "
    "In 1983 the lamp was made automatic.",
    "Write a Python function that returns the largest number of a list, with two examples of how to call it.",
    "Why is the sky blue during the day and red in the evening?",
)
