import numpy as np

from flexspec.runtime.drafters.grades import NUM_GRADES, grade, shares


def test_surer_tokens_have_higher_grades_and_every_grade_occurs() -> None:
    grades = [grade(estimate) for estimate in np.linspace(0, 1, 2001)]
    assert grades == sorted(grades)
    assert set(grades) == set(range(NUM_GRADES))
    assert [grade(estimate) for estimate in (0.49, 0.51, 0.79, 0.81, 0.95, 0.99)] == [3, 4, 4, 5, 6, 7]


def test_shares_are_a_softmax() -> None:
    scores = np.log(np.array([0.1, 0.6, 0.3]))
    np.testing.assert_allclose(shares(scores, np.array([1, 2])), [0.6, 0.3])
    assert shares(np.array([5.0, -1e9]), np.array([0, 1])) == [1.0, 0.0]
