"""The frameworks side by side: one model, one seed, one curve, and what each of them says on the wire.

Read `plain.py`, then the adapter of a framework that you know beside `adapters/ours.py`. `rankwise frameworks list`
says what there is, `run` runs it, and `compare` makes the table of all: each cell is a run.

    plain.py          the run that every framework is given, and the curve of one process
    in_rounds.py      the same run of islands, and of clients
    catalogue.py      frameworks and their features, the plan of ours that does the same, and what differs
    environments.py   environments of their own, for packages that the project does not have
    on_rank.py        one rank of a run: its losses, and what it says, holds and takes
    rows.py           what runs have shown: rows, stored with versions and date
    words.py          our words in the frameworks' words: flags and defaults, and what errors look like
    moving.py         our checkpoints to torch's DCP and to Hugging Face's names of Llama, and back
    moving_deepspeed.py   our checkpoints to DeepSpeed's universal ones, and back
    moving_megatron.py    our checkpoints to Megatron's names and order of rows, and back

    adapters/ours.py         the reference itself, by the plan of a feature
    adapters/ddp.py          torch DistributedDataParallel, and ZeroRedundancyOptimizer
    adapters/fsdp.py         torch FSDP of both generations, and hybrid sharding
    adapters/tensor.py       torch DTensor: tensor and sequence parallelism
    adapters/pipelining.py   torch pipelining, by five schedules
    adapters/context.py      torch's ring attention
    adapters/context_of_dtensors.py  the same for DTensors, through torch's dispatcher
    adapters/checkpoint.py   torch DCP from one layout into another, and torchrun's restarts

    adapters/with_accelerate.py     Accelerate
    adapters/with_fairscale.py      FairScale: OSS, ShardedDataParallel, Pipe
    adapters/with_fairscale_moe.py  FairScale: experts
    adapters/with_torchao.py        torchao: optimizers of 8 and 4 bits, float8
    adapters/with_torchft.py        torchft: a replica dies, and another takes its place
    adapters/with_torchft_local.py  torchft: DiLoCo
    adapters/torchft_member.py      a replica of it, and its group with our tap
    adapters/with_deepspeed.py      DeepSpeed: ZeRO and its pipeline
    adapters/with_deepspeed_moe.py  DeepSpeed: experts
    adapters/with_ulysses.py        DeepSpeed-Ulysses
    adapters/moved.py               a run that goes from ours to a framework and back, by checkpoints
    adapters/with_deepspeed_moved.py    DeepSpeed in it
    adapters/with_megatron_moved.py     Megatron Core in it
    adapters/with_megatron.py       Megatron Core: tensor and sequence parallelism, by its layers in our model
    adapters/with_megatron_gpt.py   Megatron Core's own model: pipelines, experts, its distributed optimizer
    adapters/megatron_model.py      our model as its GPTModel
    adapters/megatron_weights.py    our weights in its names and its order of rows
    adapters/as_gpu.py              the CPU in the place of a GPU, where one is asked for and nothing needs it
    adapters/with_torchtitan.py     TorchTitan: its models and its parallelize functions
    adapters/with_torchtitan_pipeline.py  TorchTitan: its pipeline
    adapters/torchtitan_model.py    our model as its Qwen 3
    adapters/with_ray.py            Ray Train
    adapters/with_flower.py         Flower: FedAvg

    answers/launchers.py    which rank a process is, by its environment
    answers/stages.py       which stage it is, by what it says
    answers/factors.py      what a mean loss is multiplied by, where a framework takes means
    answers/extra.py        all-reduces that a step could do without
    answers/translated.py   a configuration of DeepSpeed for `fully_shard`
    answers/into_theirs.py  a parameter of ours in Meta's Llama
    answers/megatron_flags.py  a plan of ours as Megatron's command line
    answers/torch_mesh.py      Megatron's command line as a mesh of torch's
    answers/hang.py            the call that a hang waits for, by what flight recorders have kept

    lab/steps.py        one step of a framework: run in ranks that are there, or stored
    lab/runs.py         a run from outside: ranks started, and a row of what they found
    lab/failing.py      what a reader sees of three mistakes
    lab/failing_in.py   the same mistakes through DeepSpeed, Megatron Core, Accelerate and Ray Train
    lab/hanging.py      a hang of DeepSpeed, recorded
"""
