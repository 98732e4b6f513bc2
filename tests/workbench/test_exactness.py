from ropewalk.workbench.exactness import measure_exactness


def test_our_error_is_rounding_everywhere_and_that_of_float32_angles_grows() -> None:
    errors = measure_exactness(head_dim=16, base=10_000.0)
    assert errors.positions[0] == 1
    assert errors.positions[-1] > 2**31 - 10
    assert max(errors.ours) < 7e-8
    by_position = dict(zip(errors.positions, errors.float32, strict=True))
    assert by_position[10] < 1e-5
    assert by_position[1_000_000] > 1e-3
    assert min(errors.bfloat16[12:]) > 0.1  # from position 1 000 on
