"""What is discovered computes what it claims: on rows whose exact answer every dtype can hold, without any tolerance."""

import dataclasses

import numpy as np
import pytest

from normcheck.implementations import Implementation, Inputs, call, frameworks, implementations
from normcheck.norms import BatchNorm, LayerNorm

# in the ledger: its eps is in another place than it says
MISPLACED = ("openvino.NormalizeL2[max]",)
CASES = [
    pytest.param(one, dtype, marks=pytest.mark.xfail(one.name in MISPLACED, reason="in the ledger"))
    for one in implementations()
    for dtype in one.dtypes
    if not one.norm.ddof and "eps" in one.variable
]
BY_NAME = {implementation.name: implementation for implementation in implementations()}


def signs(rows, width):
    """Rows of as many +1 as -1, each in its own order: mean 0, variance 1, mean square 1."""
    row = np.resize([1.0, -1.0], width)
    return np.stack([np.random.default_rng(seed).permutation(row) for seed in range(rows)])


def inputs_for(implementation, dtype, layout, width=16):
    """Signs in the implementation's shape, small integers as weight and bias, given statistics of mean 1 and variance 1."""
    norm, axis = implementation.norm, implementation.channel_axis
    rank = {"channels_last": 4}.get(layout) or (min(implementation.ranks) if implementation.ranks else None)
    shape = norm.shape_of(8, width, rank, axis)
    fold = norm.fold(shape, axis)
    parameters = np.arange(norm.parameter_size(fold)) % 5 - 2.0
    given = {"weight": parameters} if implementation.takes("weight") else {}
    if implementation.takes("bias"):
        given["bias"] = parameters[::-1]
    running = dict.fromkeys(("running_mean", "running_var"), np.ones(shape[axis])) if norm.has_running else {}
    details = {"dtype": dtype, "weight_dtype": implementation.weight_dtype, "layout": layout}
    training = implementation.training is not False
    return Inputs(fold.unfold(signs(8, width)), **given, **running, **details, training=training)


def exact(implementation, inputs):
    """The answer: +-1 (or x - 1 with given statistics) over 2 = sqrt(1 + 3) or 1 + 3, sums over 4 or over 8 = sqrt(16 + 48)."""
    norm = implementation.norm
    fold = norm.fold(inputs.x.shape, implementation.channel_axis)
    rows = fold.fold(inputs.x) - (1.0 if implementation.training is False else 0.0)
    y = rows / {"mean inside": 2.0, "sum inside": 8.0}.get(f"{norm.reduce} {norm.eps_placement}", 4.0)
    of_row = np.arange(fold.rows) % fold.period
    if inputs.weight is not None:
        y = y * fold.affine(inputs.weight + norm.weight_offset)[of_row]
    if inputs.bias is not None:
        y = y + fold.affine(inputs.bias)[of_row]
    return fold.unfold(y)


@pytest.mark.parametrize(("implementation", "dtype"), CASES, ids=lambda value: getattr(value, "name", value))
def test_the_exact_answer_is_given_where_there_is_one(implementation, dtype):
    """Weight, bias, groups, statistics, eps and layout arrive where they belong: signs with eps = 3 give halves exactly."""
    summed = implementation.norm.reduce == "sum" and implementation.norm.eps_placement == "inside"
    varied = implementation.with_norm(dataclasses.replace(implementation.norm, eps=48.0 if summed else 3.0))
    for layout in implementation.layouts:
        inputs = inputs_for(implementation, dtype, layout)
        output = call(varied, inputs)
        assert output.dtype == dtype
        assert np.array_equal(output.y, exact(implementation, inputs))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_annotated_transformers_layer_norm(dtype):
    """A row with std 2 (Bessel's correction, 16/4) and eps 2 is divided by 4."""
    implementation = BY_NAME["textbook.annotated_layer_norm"]
    varied = implementation.with_norm(LayerNorm(eps=2.0, eps_placement="outside", ddof=1))
    row = np.array([[-2.0, 2.0, 2.0, -2.0, 0.0]])
    assert np.array_equal(call(varied, Inputs(row, dtype=dtype)).y, row / 4)


def test_a_sum_norm_divides_by_eps_where_it_is_larger():
    """L2Norm and ScaleNorm take the larger of length and eps."""
    for name in ("textbook.l2_norm", "textbook.scale_norm"):
        varied = BY_NAME[name].with_norm(dataclasses.replace(BY_NAME[name].norm, eps=8.0))
        assert np.array_equal(call(varied, Inputs(signs(2, 16))).y, signs(2, 16) / 8)


@pytest.mark.parametrize("name", [name for name, found in BY_NAME.items() if "atch" in name and found.training])
def test_running_statistics_move_halfway_to_the_batch(name):
    """With momentum 1/2 the mean 4 meets the batch's 0 at 2, the variance 4 meets the unbiased 2 at 3, or the biased 1 at 2.5."""
    implementation = BY_NAME[name]
    shape = (2, 3) if implementation.ranks is None or 2 in implementation.ranks else (2, 3, 1, 1)
    x = np.multiply.outer([-1.0, 1.0], np.ones(shape[1:]))
    running = dict.fromkeys(("running_mean", "running_var"), np.full(3, 4.0))
    running |= {"weight": np.ones(3), "bias": np.zeros(3)} if implementation.takes("weight") else {}
    varied = implementation.with_norm(dataclasses.replace(implementation.norm, momentum=0.5))
    dtype = implementation.dtypes[0]
    output = call(varied, Inputs(x, **running, dtype=dtype, weight_dtype=implementation.weight_dtype))
    variance = 3.0 if implementation.contract.running_ddof else 2.5
    assert (output.running_mean.tolist(), output.running_var.tolist()) == ([2.0] * 3, [variance] * 3)


def test_textbook_batch_norm_without_running_statistics():
    """The batch's own statistics serve where none are given, and none are returned."""
    output = call(BY_NAME["textbook.batch_norm[train]"], Inputs(signs(2, 4).T))
    assert output.running_mean is None
    assert output.running_var is None


def test_the_textbook_needs_no_framework():
    """Implementations that need nothing but numpy are discovered, one at least for each norm."""
    found = implementations("numpy")
    names = {implementation.norm.name for implementation in found}
    norms = {"LayerNorm", "RMSNorm", "PartialRMSNorm", "L2Norm", "ScaleNorm", "GroupNorm", "InstanceNorm", "BatchNorm"}
    assert names == norms
    assert {"float64", "float32", "float16", "bfloat16"} == {dtype for one in found for dtype in one.dtypes}


@pytest.fixture
def torch():
    """torch, or a skip."""
    return pytest.importorskip("torch")


class TestTorch:
    """What only torch has: gradients, modules, devices, threads."""

    def test_gradients_are_neither_recorded_nor_in_the_way(self, torch):
        """Code may write into its parameters and return what would require a gradient."""
        parameter = torch.nn.Parameter(torch.zeros(4))

        def writes(x, weight, bias):
            parameter.copy_(weight)
            return x * parameter

        def tracks(x, weight, bias):
            with torch.enable_grad():
                return x * parameter

        weight = np.array([1.0, 2.0, 3.0, 4.0])
        for function in (writes, tracks):
            output = call(Implementation(function, LayerNorm()), Inputs(signs(2, 4), weight=weight))
            assert np.array_equal(output.y, signs(2, 4) * weight)

    def test_tensors_lie_in_memory_of_torch(self, torch):
        """Inputs are aligned as torch's own allocations are, so that kernels take the path that they take for users."""
        adapter = frameworks()["torch"]
        natives = [adapter.to_native(np.ones(size), "float32") for size in range(1, 60)]
        assert {native.data_ptr() % 64 for native in natives} == {0}

    def test_a_module_keeps_its_own_parameters_where_none_are_given(self, torch):
        """Parameters that are not given are those that the module was made with, in the dtype of parameters."""
        seen = []

        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.full((4,), 3.0))

            def forward(self, x):
                seen.append((self.weight.dtype, self.training))
                return x * self.weight

        implementation = Implementation(norm=LayerNorm(), module=lambda norm, **_: Module())
        output = call(implementation, Inputs(signs(2, 4), dtype="bfloat16", training=False))
        assert np.array_equal(output.y, signs(2, 4) * 3)
        assert seen == [(torch.bfloat16, False)]

    def test_a_residual_goes_to_the_forward_of_a_module(self, torch):
        """What is no state of the module is an argument of its forward."""

        class Module(torch.nn.Module):
            def forward(self, x, residual):
                return x, x + residual

        implementation = Implementation(norm=LayerNorm(), module=lambda norm, **_: Module(), residual=True)
        output = call(implementation, Inputs(signs(2, 4), residual=np.ones((2, 4))))
        assert np.array_equal(output.new_residual, signs(2, 4) + 1)

    def test_numpy_arrays_are_no_tensors(self, torch):
        """Code that leaves the framework returns something else than it claims."""
        with pytest.raises(Exception, match=r"^TypeError: returned ndarray, but should return a torch\.Tensor$"):
            call(Implementation(lambda x, w, b: x.numpy(), LayerNorm()), Inputs(signs(2, 4)))

    def test_threads_are_pinned(self, torch):
        """The number of threads inside one operation is set for the process."""
        before = torch.get_num_threads()
        try:
            frameworks()["torch"].pin_threads(1)
            assert torch.get_num_threads() == 1
        finally:
            torch.set_num_threads(before)

    def test_version_and_devices(self, torch):
        """The version is that of the package; the CPU is always there."""
        adapter = frameworks()["torch"]
        assert adapter.version() == torch.__version__.partition("+")[0] or adapter.version() == torch.__version__
        assert adapter.devices()[0] == "cpu"

    def test_complex_results_keep_their_dtype(self, torch):
        """The dtype is judged by a check; the real part is what is compared."""
        output = call(Implementation(lambda x, w, b: x + 1j, LayerNorm()), Inputs(signs(2, 4)))
        assert (output.dtype, output.y.tolist()) == ("complex64", signs(2, 4).tolist())

    def test_function_and_module_claim_the_same(self, torch):
        """Each module has its function's norm, contract and dtypes, and both are judged in both modes."""
        pairs = {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm", "GroupNorm": "group_norm", "InstanceNorm2d": "instance_norm"}
        pairs |= {"BatchNorm1d": "batch_norm", "BatchNorm2d": "batch_norm"}
        for name in BY_NAME:
            kind = name.removeprefix("torch.nn.").partition("[")[0]
            if name.startswith("torch.nn.") and kind in pairs:
                # the function of a BatchNorm2d in another memory format is no row of its own
                plain = name.replace(", channels_last", "") if kind == "BatchNorm2d" else name
                function = BY_NAME[plain.replace(kind, f"functional.{pairs[kind]}")]
                module = BY_NAME[name]
                assert (module.norm, module.contract, module.dtypes) == (function.norm, function.contract, function.dtypes)
                assert (module.training, module.weight_dtype) == (function.training, function.weight_dtype)

    def test_only_merging_kernels_claim_to_merge(self, torch):
        """LayerNorm and GroupNorm merge partial variances (Welford), the others sum."""
        merging = {one.norm.name for one in implementations("torch") if one.contract.accumulation == "merge"}
        assert merging == {"LayerNorm", "GroupNorm"}


def test_batch_norm_is_judged_with_parameters_of_both_dtypes():
    """In 16 bit, parameters of the input's dtype and of float32 are two implementations of each mode."""
    pytest.importorskip("torch")
    found = {
        (one.training, one.weight_dtype, one.dtypes)
        for one in implementations("torch")
        if one.name.startswith("torch.nn.functional.batch_norm")
    }
    every, halves = ("float64", "float32", "float16", "bfloat16"), ("float16", "bfloat16")
    assert found == {(mode, *rest) for mode in (True, False) for rest in ((None, every), ("float32", halves))}
    assert all(one.norm == BatchNorm() for one in implementations("torch") if "batch_norm" in one.name)
