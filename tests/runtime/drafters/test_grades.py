import numpy as np

from flexspec.runtime.drafters.grades import NUM_GRADES, grade


def test_surer_tokens_have_higher_grades_and_every_grade_occurs() -> None:
    estimates = [0.0, *np.geomspace(1e-4, 0.5, 500), *(1 - np.geomspace(0.5, 1e-6, 500)), 1.0]
    grades = [grade(estimate) for estimate in estimates]
    assert grades == sorted(grades)
    assert set(grades) == set(range(NUM_GRADES))
    assert [grade(estimate) for estimate in (0.49, 0.51, 0.79, 0.81, 0.95, 0.99, 0.999)] == [3, 4, 4, 5, 6, 7, 8]
