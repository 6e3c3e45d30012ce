"""How programs of any language say that a library, a program, a driver or a GPU is not there."""

from __future__ import annotations

FAILED_TO = r"(?:can ?not|can.?t|could ?n.?t|could not|fail(?:ed|ure)? to|unable to)"
CANNOT_GET = (
    rf"{FAILED_TO}(?: be)?(?: \w+)? (?:load|open|dlopen|find|found|locate|import|access)\w*"
)
ABSENT = (
    r"(?:not (?:be )?(?:found|available|installed|present|recogni[sz]ed)|no such file|missing"
    r"|could ?n.?t be found|does ?n.?t exist|does not exist|ENOENT)"
)
DRIVER_LIBRARY = (
    r"(?:lib(?:cuda|nvidia-(?:ml|encode|ptxjitcompiler|opticalflow|nvvm)|nvcuvid|nvoptix)"
    r"(?:\.so(?:\.\d{1,2})?)?(?![\w-]|\.so|\.\d)|\bNVML(?: shared)? library|\bnvml\.so"
    r"|(?:CUDA|NVIDIA) driver(?: shared)? librar(?:y|ies)|\W(?:nv)?cuda\W{1,2} shared library)"
)


# "no CUDA driver found": to a program, where the libraries are not there to be loaded
NO_DRIVER = (
    rf"(?:CUDA|NVIDIA)(?: \w+)? drivers? ?(?:is |are |was |were |seems? )?{ABSENT}"
    rf"|(?:\bno|missing|without(?: an?)?|{CANNOT_GET}) (?:\w+ )?(?:CUDA|NVIDIA) drivers?\b"
    r"(?! (?:version|API|process))"
)
_GPUS = r"(?:GPUs?\b|CUDA devices?|accelerator devices?|NVIDIA (?:GPU|device|card)s?)"
_NOT_THE_GPU = (
    r"(?!(?: devices?)? (?:MIG|memory|resources?|process\w*|code|nodes?|metrics|operator|plugin"
    r"|labels?|support|name|usage|utili[sz]ation|driver|stats|model|alloc\w+|annotations?|quotas?|requests?"
    r"|limits?|types?|topology|config\w*|information|count|pods?|claims?))"
)
_SEEN = "found|detected|available|present|visible|matched"
# that there is no GPU, where the program does not go on without
NO_GPU = (
    r"^(?!.*(?:fall(?:ing|s)? ?back|(?<!=)\bCPU\b|NCCL (?:INFO|WARN)|nodes are available"
    r"|preemption)).*"
    r"(?:\b(?:no|zero|0) (?:[^\s:]+ ){0,4}?(?:(?:GPUs?|accelerators?|compute devices?)\b"
    r"|active driver\(s\)|(?:CUDA|NVIDIA)[- ](?:capable|compatible|enabled|GPU|device|card)\w*)"
    rf"{_NOT_THE_GPU}.{{0,60}}?\b(?:{_SEEN})\b(?! to be)"
    # where the line is broken
    r"|\bno (?:\w+ )?GPUs? (?:is|are|was|were)\s*$"
    rf"|\bno (?:visible|accessible|usable|compatible) (?:[^\s:]+ ){{0,2}}?{_GPUS}{_NOT_THE_GPU}"
    rf"|(?:not able to|{FAILED_TO}) (?:find|detect|locate|access|see|use|discover)\w*(?:/\w+)? "
    rf"(?:\w+ ){{0,3}}?{_GPUS}\b{_NOT_THE_GPU}"
    rf"|\b(?:CUDA|{_GPUS}) (?:is |are |was |were )?"
    r"(?:not (?:found|detected|available|accessible)|unavailable\b)"
    r"|(?:found|detected|sees?) (?:no|zero|0) (?:\w+ )?(?:GPUs?\b|CUDA|NVIDIA)"
    r"|requires? at least (?:1|one) (?:CUDA |NVIDIA )?GPU\b|no compatible CUDA devices?)"
)


def no_program(name: str) -> str:
    """A shell, Go, Python, Node or a container engine does not find a program."""
    return (
        rf"(?:not found|no such file or directory|spawn|{CANNOT_GET})[:\s]+[\"'`]?(?:/\S*/)?{name}"
        rf"(?![\w-])"
        rf"|(?<![\w-]){name}\\?[\"'`]?\W{{1,3}}(?:(?:is|was|command|executable|program|stat|exec)\b"
        rf"[^:]{{0,80}}?\W{{1,2}})?{ABSENT}"
        rf"|\bno {name} in\b"
    )


NO_TOOL = no_program(r"nvidia-(?:container-(?:runtime-hook|runtime|toolkit|cli)|ctk)")
