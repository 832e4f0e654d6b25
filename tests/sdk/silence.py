"""Comments, pings and blank lines of a slow server are no part of any answer, in the Python libraries (behaviour 30)."""

import anthropic
import openai

from checks import check, expect, options, run

ANSWER = "one two three"
ASKED = [{"role": "user", "content": "hi"}]


def chat(**more):
    return {"model": OPTIONS.model, "messages": ASKED, "reasoning_effort": "none", "max_tokens": 48, **more}


def message(**more):
    return {"model": OPTIONS.model, "messages": ASKED, "thinking": {"type": "disabled"}, "max_tokens": 48, **more}


def respond(**more):
    return {"model": OPTIONS.model, "input": "hi", "reasoning": {"effort": "none"}, "max_output_tokens": 48, **more}


def complete(**more):
    return {"model": OPTIONS.model, "prompt": "hi", "max_tokens": 48, **more}


def lines(create, request):
    """The lines of a stream as they came."""
    with create(**request, stream=True) as response:
        return list(response.iter_lines())


@check
def silences_are_filled_in_every_protocol(openais, anthropics):
    for create, request in [
        (openais.chat.completions.with_streaming_response.create, chat()),
        (openais.completions.with_streaming_response.create, complete()),
        (openais.responses.with_streaming_response.create, respond()),
        (anthropics.messages.with_streaming_response.create, message()),
    ]:
        seen = lines(create, request)
        first = next(at for at, line in enumerate(seen) if line.startswith("data:"))
        last = max(at for at, line in enumerate(seen) if line.startswith("data:"))
        expect(any(line.startswith(":") or line == "event: ping" for line in seen[first:last]), seen)
    # The first event of messages waits for the first token.
    expect(lines(anthropics.messages.with_streaming_response.create, message())[0] == ": keep-alive")


@check
def whole_answers_have_blank_lines_before_them(openais, anthropics):
    for create, request in [
        (openais.chat.completions.with_raw_response.create, chat()),
        (openais.completions.with_raw_response.create, complete()),
        (openais.responses.with_raw_response.create, respond()),
        (anthropics.messages.with_raw_response.create, message()),
    ]:
        response = create(**request)
        expect(response.http_response.text.startswith("\n"), response.http_response.text)


@check
def chat_is_read_through_them(openais, _):
    whole = openais.chat.completions.create(**chat())
    expect(whole.choices[0].message.content == ANSWER, whole)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in openais.chat.completions.create(**chat(stream=True)))
    expect(text == ANSWER, text)
    with openais.chat.completions.stream(**chat()) as stream:
        expect(stream.get_final_completion().choices[0].message.content == ANSWER)


@check
def completions_are_read_through_them(openais, _):
    whole = openais.completions.create(**complete())
    expect(whole.choices[0].text == ANSWER, whole)
    text = "".join(chunk.choices[0].text for chunk in openais.completions.create(**complete(stream=True)))
    expect(text == ANSWER, text)


@check
def responses_are_read_through_them(openais, _):
    whole = openais.responses.create(**respond())
    expect(whole.output_text == ANSWER, whole)
    with openais.responses.stream(**respond()) as stream:
        numbers = [event.sequence_number for event in stream]
        expect(stream.get_final_response().output_text == ANSWER)
    expect(numbers == list(range(len(numbers))), numbers)


@check
def messages_are_read_through_them(_, anthropics):
    whole = anthropics.messages.create(**message())
    expect(whole.content[0].text == ANSWER, whole)
    with anthropics.messages.stream(**message()) as stream:
        text = "".join(stream.text_stream)
        expect(text == stream.get_final_message().content[0].text == ANSWER, text)


if __name__ == "__main__":
    OPTIONS = options()
    run(
        openai.OpenAI(base_url=OPTIONS.url + "/v1", api_key=OPTIONS.key, max_retries=0),
        anthropic.Anthropic(base_url=OPTIONS.url, api_key=OPTIONS.key, max_retries=0),
    )
