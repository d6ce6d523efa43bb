import torch


class CompiledAOTI:
    def __post_init__(self):
        torch.called("CompiledAOTI.__post_init__")


class CompiledFxGraph:
    def __init__(
        self,
        current_callable,
        graph,
        gm,
        output_strides,
        disabled_cudagraphs_reason,
        metrics_deltas,
        counter_deltas,
        cudagraphs,
        example_inputs,
        static_input_idxs,
        fx_kwargs,
        inputs_to_check,
        runnable_graph_str,
        inductor_post_grad_graph_str,
        compiled_fn_runner=None,
        inductor_provenance_mapping_str=None,
        inductor_provenance_stack_traces_str=None,
    ):
        torch.called("CompiledFxGraph.__init__")

    def post_compile(self, example_inputs, constants, graph_kwargs):
        torch.called("CompiledFxGraph.post_compile")

    def write_to_disk(self):
        return torch.called("write_to_disk")
