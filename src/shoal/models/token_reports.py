"""Parse the token usage that OpenAI-compatible servers report, in any known form.

form                                  servers
-----------------------------------   ---------------------------------------------------------------------------
`prompt_tokens`, `completion_tokens`  OpenAI Chat and most others
`input_tokens`, `output_tokens`       OpenAI Responses, and gateways to Anthropic (which exclude cached tokens)
`inputTokens`, `outputTokens`         gateways to Bedrock
`x_groq.usage`                        Groq, in its last chunk
`choices[0].usage`                    Moonshot
`timings`                             llama.cpp versions without `stream_options`
`prompt_eval_count`, `eval_count`     Ollama's own protocol

A server may send a report with each chunk, and a later report may contain zeros. Zeros never replace a known number.
"""

import msgspec

from shoal.kernel.messages import Usage


class InputDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class TokenReport(msgspec.Struct):
    """A `usage` object with the field names of all known servers."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None
    bedrock_input: int | None = msgspec.field(default=None, name="inputTokens")
    bedrock_output: int | None = msgspec.field(default=None, name="outputTokens")
    prompt_cache_hit_tokens: int | None = None
    cached_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    reasoning_tokens: int | None = None

    def usage(self) -> Usage:
        inputs = self.prompt_tokens_details or self.input_tokens_details or InputDetails()
        outputs = self.completion_tokens_details or self.output_tokens_details or OutputDetails()
        cached = inputs.cached_tokens or self.prompt_cache_hit_tokens or self.cached_tokens
        cached = cached or self.cache_read_input_tokens or 0
        written = inputs.cache_write_tokens or self.cache_creation_input_tokens or 0
        asked = self.prompt_tokens or self.input_tokens or self.bedrock_input or 0
        if asked and not self.prompt_tokens and not inputs.cached_tokens:  # Anthropic excludes cached tokens.
            asked += (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)
        output = self.completion_tokens or self.output_tokens or self.bedrock_output or 0
        if (total := self.total_tokens) and not (asked and output):
            asked, output = (
                asked or max(0, total - output) * bool(output),
                output or max(0, total - asked) * bool(asked),
            )
        return Usage(asked, output, cached, written, outputs.reasoning_tokens or self.reasoning_tokens or 0)


class GroqReport(msgspec.Struct):
    usage: TokenReport | None = None


class Timings(msgspec.Struct):
    """llama.cpp's report. `prompt_n` counts the processed prompt tokens, and `cache_n` those that were cached."""

    prompt_n: int | None = None
    cache_n: int | None = None
    predicted_n: int | None = None

    def usage(self) -> Usage:
        cached = self.cache_n or 0
        return Usage((self.prompt_n or 0) + cached, self.predicted_n or 0, cached)


def with_report(known: Usage, report: Usage) -> Usage:
    """Merge a report into the known usage. Zeros never replace a known number."""
    pairs = zip(msgspec.structs.astuple(known), msgspec.structs.astuple(report), strict=True)
    return Usage(*(new or old for old, new in pairs))
