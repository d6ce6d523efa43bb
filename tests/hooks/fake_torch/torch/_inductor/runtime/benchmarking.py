import torch


class Benchmarker:
    def benchmark_gpu_with_cuda_graph(self, _callable, grad_to_none=None, cudagraph_unroll=None, **kwargs):
        return torch.called("benchmark_gpu_with_cuda_graph", _callable)


class TritonBenchmarker(Benchmarker):
    def benchmark_gpu(self, _callable, is_vetted_benchmarking=False, **kwargs):
        return torch.called("triton benchmark_gpu", _callable)


class InductorBenchmarker(TritonBenchmarker):
    def benchmark_gpu(
        self,
        _callable,
        estimation_iters=5,
        memory_warmup_iters=100,
        benchmark_iters=100,
        max_benchmark_duration=25,
        return_mode="min",
        grad_to_none=None,
        is_vetted_benchmarking=False,
        device_type=None,
        **kwargs,
    ):
        return torch.called("inductor benchmark_gpu", _callable)


class TorchProfilerBenchmarker(InductorBenchmarker):
    def benchmark_gpu(
        self,
        _callable,
        warmup=25,
        rep=100,
        estimation_iters=5,
        memory_warmup_iters=10,
        max_benchmark_duration=25,
        return_mode="mean",
        grad_to_none=None,
        device_type=None,
        **kwargs,
    ):
        return torch.called("profiler benchmark_gpu", _callable)


torch.reached("end", globals())
