"""What people ask, of six kinds in turn: prompts on which drafts of every kind are accepted and rejected."""

_NOTES = (
    "Minutes of the garden club. The spring sale made 412 euros, forty more than last year. Ines will buy two new wheelbarrows. The pond "
    "leaks again, and Tom asks a mason before May. The next meeting is on the first Thursday of March."
)
_REPORT = (
    "The ferry to the islands stopped at noon because of strong wind. About three hundred passengers waited in the harbour hall, where the "
    "company gave out soup and blankets. The first boat left at half past six, and the last one shortly before midnight."
)

PROMPTS: tuple[str, ...] = (
    "Write a short letter to a neighbour who looked after your cat for two weeks.",
    "Translate into German: The library opens at nine and closes at six.",
    f"Summarise in one sentence: {_NOTES}",
    "What is the capital of Australia, and which river is closest to it?",
    "A train covers 150 km in two hours and then 90 km in one hour. What is its average speed?",
    f"Using only this text, say who asks the mason: {_NOTES}",
    "Invent a name and a slogan for a bakery that only sells bread from rye.",
    "Translate into French: My sister has lived in a small town by the sea since 2015.",
    f"Summarise in three bullet points: {_REPORT}",
    "Why does ice float on water?",
    "Solve for x: 3x + 7 = 25. Show every step.",
    f"Using only this text, say when the last boat left: {_REPORT}",
    "Describe an old lighthouse in four sentences, without the word light.",
    "Translate into Spanish: Please send me the bill before the end of the month.",
    "Give a list of the planets in order, each with one fact.",
    "Who wrote Don Quixote, and in which century?",
    "List the first ten square numbers and their sum.",
    'Text: "Order 7731, two lamps, 59.90 euros each, paid." Give the order as JSON with number, item, count and price.',
    "You are a museum guide. Greet a school class and tell them the three rules of the house.",
    "Translate into Italian, then back into English: The early bird catches the worm.",
    "Explain in two sentences what a hash table does.",
    "How many bones does an adult human have, and which one is the longest?",
    "A shirt costs 40 euros and is reduced by 15 per cent, then by another 10. What is the final price?",
    "Write a Python function that returns the n-th Fibonacci number, and one that prints the first n.",
)
