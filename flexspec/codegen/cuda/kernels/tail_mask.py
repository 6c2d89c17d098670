"""Device functions that read the bit rows of a token tree: which tail slots a token sees, and at which logical index.

A block of 32 keys starts anywhere in the 32-bit words of a row, so a row's bits are first shifted to the block: one word a
row, instead of one a row and key, is loaded and kept.
"""

import triton
import triton.language as tl


@triton.jit
def either(left, right):
    """Bits set in one of two words, for reductions."""
    return left | right


@triton.jit
def set_bits(word):
    """How many bits of a uint32 are set."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return (word * 0x01010101) >> 24


@triton.jit
def _word(tail_bits, row_starts, word, num_words):
    # Where a row has no such word, no row is below the limit.
    limit = tl.where((word >= 0) & (word < num_words), 1 << 30, 0)
    return tl.load(tail_bits + row_starts + word, mask=row_starts < limit, other=0).to(tl.uint32, bitcast=True)


@triton.jit
def shifted_words(tail_bits, row_starts, num_words, first_bit):
    """Bits first_bit … first_bit+31 of each row, uint32 [rows]; those outside a row's words are 0.

    Args:
        tail_bits: the words of all rows.
        row_starts: [rows], where in them the rows' first words are.
        num_words: words of a row.
        first_bit: may be negative.
    """
    low = _word(tail_bits, row_starts, first_bit >> 5, num_words).to(tl.uint64)
    high = _word(tail_bits, row_starts, (first_bit >> 5) + 1, num_words).to(tl.uint64)
    return (((high << 32) | low) >> (first_bit & 31).to(tl.uint64)).to(tl.uint32)


@triton.jit
def has_bits(words, bits):
    """Whether bit `bits` of `words`, both uint32, is set."""
    return ((words >> bits) & 1) != 0


@triton.jit
def bits_below(tail_bits, row_starts, num_words, first_bit, words):
    """For each row and each of the 32 bits from first_bit on, how many smaller bits of the row are set, int32 [rows, 32].

    Args:
        words: of `shifted_words`.
    """
    before = tl.zeros_like(words)
    for word in range(0, tl.minimum(num_words, (first_bit + 31) >> 5)):
        kept = tl.minimum(first_bit - 32 * word, 32).to(tl.uint64)
        before += set_bits(_word(tail_bits, row_starts, word, num_words) & ((1 << kept) - 1).to(tl.uint32))
    smaller = (1 << tl.arange(0, 32).to(tl.uint32)) - 1
    return (set_bits(words[:, None] & smaller[None, :]) + before[:, None]).to(tl.int32)
