"""Chat Completions and models through the Python library of OpenAI."""

import asyncio

import openai

from checks import check, expect, options, raised, run

PLAIN = {"reasoning_effort": "none", "temperature": 0, "seed": 7, "max_tokens": 48}


def ask(text, **more):
    return {"model": OPTIONS.model, "messages": [{"role": "user", "content": text}], **PLAIN, **more}


def status_error(kind, client, status, code, **request):
    error = raised(kind, lambda: client.chat.completions.create(**request))
    expect(error.status_code == status and error.code == code, error.status_code, error.body)
    expect(error.request_id, "an error has a request id")
    expect("\n" not in error.message)
    return error


@check
def models_are_listed_and_found(client):
    listed = client.models.list()
    expect(OPTIONS.model in [model.id for model in listed.data], listed)
    found = client.models.retrieve(OPTIONS.model)
    expect(found.object == "model" and isinstance(found.created, int), found)
    raised(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"))


@check
def an_answer_is_whole(client):
    answer = client.chat.completions.create(**ask("What is 17 + 25?"))
    choice = answer.choices[0]
    expect(answer.object == "chat.completion" and answer.model == OPTIONS.model, answer)
    expect("42" in choice.message.content and choice.message.role == "assistant", answer)
    expect(choice.finish_reason == "stop" and choice.message.refusal is None, choice)
    usage = answer.usage
    expect(usage.prompt_tokens + usage.completion_tokens == usage.total_tokens, usage)
    expect(usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens, usage)
    expect(usage.completion_tokens_details.reasoning_tokens == 0, usage)
    expect(answer._request_id, "a request id")


@check
def a_stream_says_the_same_and_its_usage_comes_last(client):
    whole = client.chat.completions.create(**ask("What is 17 + 25?"))
    request = ask("What is 17 + 25?", stream=True, stream_options={"include_usage": True})
    chunks = list(client.chat.completions.create(**request))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    text = "".join(choice.delta.content or "" for choice in choices)
    expect(text == whole.choices[0].message.content, text)
    expect([c.delta.role for c in choices if c.delta.role] == ["assistant"], "one role")
    reasons = [choice.finish_reason for choice in choices]
    expect(reasons[-1] == "stop" and all(reason is None for reason in reasons[:-1]), reasons)
    expect(len({chunk.id for chunk in chunks}) == 1, "one id")
    expect(not chunks[-1].choices and chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details,
                "prompt_cache_hit_tokens": chunks[-1].usage.prompt_cache_hit_tokens,
                "prompt_cache_miss_tokens": chunks[-1].usage.prompt_cache_miss_tokens}), chunks[-1])
    expect(all(chunk.usage is None for chunk in chunks[:-1]), "usage is null before the end")


@check
def a_stream_without_usage_has_none(client):
    chunks = list(client.chat.completions.create(**ask("What is 17 + 25?", stream=True)))
    expect(all(chunk.choices and not chunk.usage for chunk in chunks), chunks[-1])


@check
def the_librarys_own_accumulator_agrees(client):
    with client.chat.completions.stream(**ask("What is 17 + 25?")) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    expect("content.delta" in kinds and "content.done" in kinds, kinds)
    expect("42" in final.choices[0].message.content, final)


@check
def thinking_is_apart_from_the_answer(client):
    answer = client.chat.completions.create(
        **ask("Think: what is 2 + 2?", reasoning_effort="high", max_tokens=400))
    message = answer.choices[0].message
    expect(isinstance(message.reasoning_content, str), message)
    expect("</think>" not in (message.content or "") + message.reasoning_content, message)


@check
def stop_strings_are_not_shown(client):
    answer = client.chat.completions.create(**ask("What is 17 + 25?", stop=["42"]))
    expect("42" not in answer.choices[0].message.content, answer)
    expect(answer.choices[0].finish_reason == "stop", answer)


@check
def a_short_bound_ends_by_length(client):
    answer = client.chat.completions.create(**ask("Tell me a long story.", max_tokens=2))
    expect(answer.choices[0].finish_reason == "length", answer)
    expect(answer.usage.completion_tokens == 2, answer.usage)


@check
def errors_have_their_classes(client):
    bad = status_error(openai.BadRequestError, client, 400, "invalid_value", **ask("hi", temperature=3))
    expect(bad.param == "temperature" and bad.type == "invalid_request_error", bad.body)
    status_error(openai.BadRequestError, client, 400, "invalid_value", **{**ask("hi"), "messages": []})
    missing = status_error(openai.NotFoundError, client, 404, "model_not_found", **{**ask("hi"), "model": "x"})
    expect(OPTIONS.model in missing.message, "the error says what is there")
    status_error(openai.NotFoundError, client.with_options(base_url=OPTIONS.url + "/nothing"), 404,
                 "unknown_path", **ask("hi"))
    large = raised(openai.APIStatusError, lambda: client.chat.completions.create(**ask("x" * (9 << 20))))
    expect(large.status_code == 413 and large.code == "request_too_large", large)
    long = status_error(openai.BadRequestError, client, 400, "context_length_exceeded", **ask("word " * 300_000))
    expect(long.param == "messages", long.body)


@check
def unknown_keys_are_authentication_errors(client):
    other = client.with_options(api_key="sk-wrong")
    for request in [ask("hi"), ask("hi", extra_headers={"Authorization": openai.Omit()})]:
        error = raised(openai.AuthenticationError, lambda: other.chat.completions.create(**request))
        expect(error.status_code == 401 and error.type == "authentication_error", error.body)


@check
def a_limited_key_gets_rate_limit_errors_that_say_how_long(client):
    limited = client.with_options(api_key=OPTIONS.limited_key)
    first = limited.chat.completions.with_raw_response.create(**ask("What is 17 + 25?"))
    expect(first.headers["x-ratelimit-remaining-requests"] == "0", first.headers)
    error = raised(openai.RateLimitError, lambda: limited.chat.completions.create(**ask("hi")))
    expect(error.status_code == 429 and error.code == "rate_limit_exceeded", error.body)
    expect(0 < int(error.response.headers["retry-after"]) <= 60, error.response.headers)


@check
def a_stream_can_be_left(client):
    for _ in range(3):
        stream = client.chat.completions.create(**ask("hold on", stream=True, max_tokens=2_000))
        next(iter(stream))
        stream.close()


@check
def many_clients_at_once_are_answered(client):
    async def everything():
        async with openai.AsyncOpenAI(
                base_url=OPTIONS.url + "/v1", api_key=OPTIONS.key, max_retries=0) as many:
            asked = [many.chat.completions.create(**ask("What is 17 + 25?")) for _ in range(16)]
            return await asyncio.gather(*asked)
    for answer in asyncio.run(everything()):
        expect("42" in answer.choices[0].message.content, answer)


if __name__ == "__main__":
    OPTIONS = options()
    if OPTIONS.engine == "script":
        @check
        def a_busy_server_is_an_internal_server_error(client):
            error = status_error(openai.InternalServerError, client, 503, "overloaded", **ask("be busy"))
            expect(error.response.headers["retry-after"], error.response.headers)

        @check
        def an_error_inside_a_stream_is_raised(client):
            def read():
                for _ in client.chat.completions.create(**ask("break off", stream=True)):
                    pass
            error = raised(openai.APIError, read)
            expect("request id" in error.message, error)

        @check
        def characters_over_several_tokens_arrive_whole(client):
            chunks = client.chat.completions.create(**ask("show signs", stream=True))
            deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
            expect("".join(deltas) == "é 杭州 🤭👩‍👩‍👧 end" and not any("\ufffd" in d for d in deltas), deltas)
    run(openai.OpenAI(base_url=OPTIONS.url + "/v1", api_key=OPTIONS.key, max_retries=0))
