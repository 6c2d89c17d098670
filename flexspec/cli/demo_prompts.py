"""The prompts of `flexspec demo`: answers that repeat some of the question, where lookup pays, code, and one that repeats nothing."""

DEMO_PROMPTS: tuple[str, ...] = (
    "Summarise this paragraph in two sentences:\n\n"
    "The lighthouse on Gull Island was built in 1857 after three ships were lost on the rocks in a single winter. "
    "For more than a century its lamp was tended by hand, and the keeper lived on the island with his family. "
    "In 1983 the lamp was made automatic, and today the keeper's house is a small museum that visitors reach by boat.",
    "Copy this text exactly:\n\n"
    "The lighthouse keeper climbed the narrow stairs every evening. He lit the lamp, wrote the weather into his book, "
    "and watched the ships pass until the morning.",
    "Answer with a quote from the text: When was the lighthouse built, and why?\n\n"
    "The lighthouse on Gull Island was built in 1857 after three ships were lost on the rocks in a single winter. "
    "In 1983 the lamp was made automatic.",
    "Write a Python class for a bank account with methods deposit, withdraw and balance.",
    "Why is the sky blue during the day and red in the evening?",
)
