"""Finds one of CUDA's or NVML's own answers in a line, whatever program printed it and how.

An answer is carried by the name of its constant, by its number beside a word for error, or by its
sentence. Names and most sentences mean nothing else; a number, or a sentence like "unknown error",
counts only in a line that is about CUDA or NVML.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpudoctor.facts.node.runtime_error_statuses import CUDA, NVML, Status


class _Alternatives:
    """Patterns for many statuses, searched at once."""

    def __init__(
        self,
        statuses: tuple[Status, ...],
        pattern_of: Callable[[Status], str],
        before: str = "",
        after: str = "",
    ) -> None:
        self._statuses = statuses
        each = "|".join(f"(?P<s{n}>{pattern_of(status)})" for n, status in enumerate(statuses))
        self._pattern = re.compile(f"{before}(?:{each}){after}", re.IGNORECASE)

    def search(self, line: str) -> Status | None:
        match = self._pattern.search(line)
        if match is None:
            return None
        found = next(key for key, text in match.groupdict().items() if text is not None)
        return self._statuses[int(found[1:])]


def _names(status: Status) -> str:
    return status.name_pattern("_?")


def _spoken(status: Status) -> str:
    return status.name_pattern(r"[\W_]+")


_CODES = {code: status for status in CUDA for code in status.codes}
_NVML_CODES = {code: status for status in NVML for code in status.codes}
_SURE = tuple(status for status in CUDA if status.alone)
_UNSURE = tuple(status for status in CUDA if not status.alone)

_NAME_END = r"(?![a-z0-9]|_[a-z])"
# cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE, CudaError::NoDevice, Julia's ERROR_NO_DEVICE
_CUDA_NAMES = _Alternatives(
    CUDA,
    _names,
    r"(?:\bcuda?_?(?:error|status)|\b(?:cuda|driver)_?error\W{1,3})_?",
    _NAME_END,
)
_BARE_NAMES = _Alternatives(CUDA, _names, r"\berror[_.:]+", _NAME_END)
_CUDA_SENTENCES = _Alternatives(_SURE, Status.sentence_pattern)
_UNSURE_SENTENCES = _Alternatives(
    tuple(status for status in _UNSURE if status.names != ("MemoryAllocation", "OutOfMemory")),
    Status.sentence_pattern,
)
# A name in words, as Blender and others spell it, with nothing but itself between its marks.
# The word "unknown" alone ends each message of a container engine.
_SPOKEN = _Alternatives(
    tuple(status for status in CUDA if status.names != ("Unknown",)),
    _spoken,
    r"(?:^|[(:|'\"\[<=]) *(?:an? )?",
    r" *(?:$|[).,;:!'\"\]]| (?:in|at|on|from)\b)",
)

_OF_CUDA = re.compile(
    r"(?i:cuda(?!-container)|cudnn|cublas|nvrtc|nvenc|nvdec|\.cuh?\b)|\bcu[A-Z]\w{2,}"
)
_OF_NCCL = re.compile(r"NCCL (?:WARN|INFO)")
_OF_THE_CLI = "nvidia-container-cli"

_ERROR_WORD = r"(?:errors?|err|errno|status|code|rc|ret|returned|result|cuResult|fail(?:ed|ure)?)"
_END = r"(?![\w%]|\.\d|[/:]\d)"
# Numbers of ends of processes, of HTTP and of build tools are other numbers.
_OTHER_NUMBERS = re.compile(
    r"exit\w*(?: with)?(?: \w+)? ?(?:code|status|value)?s?[ :=(]*-?\d+"
    r"|\bHTTP\b.*|https?://\S*"
    r"|\*\*\* \[.*|\bline:? \d+|\b(?:process|signal|pid)\W{0,3}\d+",
    re.IGNORECASE,
)
# From 30 on a number of CUDA's beside a word for error.
_NUMBER = re.compile(rf"\b{_ERROR_WORD}[\s:=#(\[]{{0,4}}(?P<code>[1-9]\d{{1,2}}){_END}",
                     re.IGNORECASE)  # fmt: skip
# Needs no more context: numba, glog's check, PyTorch, banners of NVIDIA's images, CUDA's samples.
_FRAMED = re.compile(
    r"\[(?P<numba>\d{1,3})\] Call to cu"
    r"|cudaSuccess \((?P<glog>\d{1,3}) vs\.? 0\)"
    r"|\bError (?P<torch>8\d\d|999):"
    r"|\[\[.*\berror (?P<banner>\d{1,3})\) *\]\]"
    r"|\bcode=(?P<helper>\d{1,3})\(cuda",
    re.IGNORECASE,
)
# What a program prints when it knows CUDA's answer by its number alone, small ones included.
_NUMBERED = re.compile(
    r"(?:CUDA initialization failure with error:?|cudaSetDevice err:"
    r"|cuda driver library (?:init failure:?|failed to get device context)"
    r"|cudart init failure:?|cuInit(?:\(0?\))? ?(?:err|returned|failed with error(?: code)?|=):?"
    r"|cu(?:da)?[A-Z]\w+(?:\([^)]*\))? (?:failed|error)[^\d]{0,24}"
    r"|\bcuda(?:rt)?\W{0,2}(?:runtime|driver|api)?\W{0,2}(?:errors?|failure|status)\W{0,2}"
    r"(?:code|number|no\.?|in)?[\s:=#(\[]{0,4}"
    r"|THCudaCheck FAIL .*\berror=)"
    r" ?(?P<code>\d{1,3})(?![\d%]|\.\d)",
    re.IGNORECASE,
)

_NVML_NAMES = _Alternatives(
    NVML, _names, r"(?:nvml_?error|\berror|nvml_?ret\w*)\W{0,2}_?", _NAME_END
)
_NVML_SENTENCES = _Alternatives(NVML, Status.sentence_pattern)
_OF_NVML = re.compile(r"nvml|nvidia-smi|dcgm", re.IGNORECASE)
_STARTS = re.compile(r"nvml\w*init|\binit|shut ?down|\bload(?!ed)|\bstart|\bdetect", re.IGNORECASE)
_NVML_NUMBER = re.compile(
    r"(?:(?:nvml_?init\w*(?:\([^)]*\))?|init\w* nvml\b)[^\d]{0,30}?"
    r"(?:err|fail|return|code|status|rc|ret|[=:])[^\d]{0,15}?"
    r"|nvml\W{0,2}(?:return|error|status)\W{0,2}(?:code|value)?[\s:=(]{0,3})"
    rf"(?P<code>\d{{1,3}}){_END}",
    re.IGNORECASE,
)


def cuda_answer(line: str) -> str | None:
    """Return the finding of the CUDA answer that the line carries, None for any other line."""
    if (framed := _FRAMED.search(line)) and (code := _code(framed)) in _CODES:
        return _CODES[code].finding
    status = _CUDA_NAMES.search(line)
    about = status is None and _OF_CUDA.search(line) and not _OF_NCCL.search(line)
    if status is None and about:
        status = _BARE_NAMES.search(line) or _numbered(line)
    status = status or _CUDA_SENTENCES.search(line)
    if status is None and about:
        status = _UNSURE_SENTENCES.search(line) if _OF_THE_CLI not in line else None
        status = status or _SPOKEN.search(line)
    return None if status is None else status.finding


def _code(match: re.Match[str]) -> int:
    return int(next(text for text in match.groups() if text))


def _numbered(line: str) -> Status | None:
    rest = _OTHER_NUMBERS.sub(" ", line)
    for match in _NUMBERED.finditer(rest):
        if (code := int(match["code"])) in _CODES:
            return _CODES[code]
    for match in _NUMBER.finditer(rest):
        if (code := int(match["code"])) >= 30 and code in _CODES:
            return _CODES[code]
    return None


def nvml_answer(line: str) -> str | None:
    """Return the finding of the NVML answer that the line carries, None for any other line.

    Permission and "unknown error" tell something of the machine only where NVML was to start.
    """
    if not _OF_NVML.search(line):
        return None
    starts = _STARTS.search(line) is not None
    number = _NVML_NUMBER.search(line)
    for status in (
        _NVML_NAMES.search(line),
        _NVML_SENTENCES.search(line),
        _NVML_CODES.get(int(number["code"])) if number else None,
    ):
        if status is not None and (status.alone or starts):
            return status.finding
    return None
