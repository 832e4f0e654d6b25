"""Messages and token counts through the Python library of Anthropic."""

import json

import anthropic

from checks import check, expect, options, raised, run

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
# Every member asked for, and none that can be long: what a small model is held to when it must call.
FORCED = {
    "name": "get_weather",
    "strict": True,
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def ask(text, temperature=0, **more):
    # This version of the library has no argument for it any more.
    return {"model": OPTIONS.model, "max_tokens": 48, "extra_body": {"temperature": temperature}, "thinking": {"type": "disabled"},
            "messages": [{"role": "user", "content": text}], **more}


def is_call(block):
    """Whether a block is a call that `FORCED` allows."""
    expect(block.type == "tool_use" and block.name == "get_weather" and list(block.input) == ["city", "days"], block)
    city, days = block.input.values()
    expect(isinstance(city, str) and len(city) <= 12 and type(days) is int, block)


def prompt_tokens(usage):
    """The count of input tokens excludes both counts of the cache."""
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


@check
def a_message_is_whole(client):
    message = client.messages.create(**ask("What is 17 + 25?"))
    expect(message.type == "message" and message.role == "assistant", message)
    expect([block.type for block in message.content] == ["text"] and "42" in message.content[0].text, message)
    expect(message.stop_reason == "end_turn" and message.stop_sequence is None, message)
    expect(message.usage.output_tokens > 0 and message.model == OPTIONS.model, message)
    expect(message._request_id, "a request id")


@check
def a_stream_says_the_same(client):
    whole = client.messages.create(**ask("What is 17 + 25?"))
    with client.messages.stream(**ask("What is 17 + 25?")) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    expect(text == whole.content[0].text == final.content[0].text, text)
    expect(final.stop_reason == "end_turn", final)
    expect(final.usage.output_tokens == whole.usage.output_tokens, final.usage)
    expect(prompt_tokens(final.usage) == prompt_tokens(whole.usage), final.usage)


@check
def events_come_in_their_order(client):
    events = [event.type for event in client.messages.create(**ask("What is 17 + 25?", stream=True))
              if event.type != "ping"]
    expect(events[:2] == ["message_start", "content_block_start"], events)
    expect(events[-3:] == ["content_block_stop", "message_delta", "message_stop"], events)
    expect(set(events[2:-3]) == {"content_block_delta"}, events)


@check
def a_count_is_the_later_usage(client):
    for more in [{}, {"system": "Answer briefly."}, {"tools": [WEATHER]}]:
        request = ask("What is 17 + 25?", **more)
        used = client.messages.create(**request).usage
        del request["max_tokens"], request["extra_body"]
        counted = client.messages.count_tokens(**request)
        expect(counted.input_tokens == prompt_tokens(used), counted, used)


@check
def stop_reasons_are_told_apart(client):
    stopped = client.messages.create(**ask("What is 17 + 25?", stop_sequences=["42"]))
    expect((stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "42"), stopped)
    expect("42" not in stopped.content[0].text, stopped)
    short = client.messages.create(**ask("Tell me a long story.", max_tokens=2))
    expect(short.stop_reason == "max_tokens" and short.usage.output_tokens == 2, short)


@check
def thinking_is_a_block_of_its_own(client):
    request = ask("Think: what is 2 + 2?", thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2_000)
    del request["extra_body"]
    message = client.messages.create(**request)
    expect(message.content[0].type == "thinking", message)
    with client.messages.stream(**request) as stream:
        final = stream.get_final_message()
    expect([block.type for block in final.content] == [block.type for block in message.content], final)


@check
def errors_have_their_classes_and_shape(client):
    cases = [
        (anthropic.BadRequestError, "invalid_request_error", client, ask("hi", max_tokens=0)),
        (anthropic.BadRequestError, "invalid_request_error", client, ask("hi", temperature=9)),
        (anthropic.NotFoundError, "not_found_error", client, ask("hi", model="x")),
        (anthropic.AuthenticationError, "authentication_error", client.with_options(api_key="sk-wrong"), ask("hi")),
    ]
    for kind, word, asked, request in cases:
        error = raised(kind, lambda: asked.messages.create(**request))
        expect(error.body["type"] == "error" and error.body["error"]["type"] == word, error.body)
        expect(error.request_id, error.body)


@check
def bearers_are_accepted_too(client):
    other = anthropic.Anthropic(base_url=OPTIONS.url, auth_token=OPTIONS.key, api_key=None, max_retries=0)
    expect(other.messages.create(**ask("What is 17 + 25?")).type == "message")


@check
def a_limited_key_gets_rate_limit_errors(client):
    limited = client.with_options(api_key=OPTIONS.limited_key)
    limited.messages.create(**ask("What is 17 + 25?"))
    error = raised(anthropic.RateLimitError, lambda: limited.messages.create(**ask("hi")))
    expect(error.body["error"]["type"] == "rate_limit_error", error.body)
    expect(0 < int(error.response.headers["retry-after"]) <= 60, error.response.headers)


@check
def models_have_anthropics_shape(client):
    expect(OPTIONS.model in [model.id for model in client.models.list().data])
    expect(client.models.retrieve(OPTIONS.model).type == "model")


@check
def a_stream_can_be_left(client):
    stream = client.messages.create(**ask("hold on", stream=True, max_tokens=2_000))
    next(iter(stream))
    stream.close()


if __name__ == "__main__":
    OPTIONS = options()
    if OPTIONS.engine == "script":
        @check
        def tools_are_called_and_their_results_go_back(client):
            request = ask("Weather: Oslo?", tools=[WEATHER], max_tokens=200)
            called = client.messages.create(**request)
            expect(called.stop_reason == "tool_use", called)
            use = [block for block in called.content if block.type == "tool_use"]
            expect([(block.name, block.input) for block in use] == [("get_weather", {"city": "Oslo", "days": 3})], called)
            with client.messages.stream(**request) as stream:
                final = stream.get_final_message()
            expect([b.input for b in final.content if b.type == "tool_use"] == [use[0].input], final)
            turns = request["messages"] + [
                {"role": "assistant", "content": called.content},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use[0].id, "content": "It is sunny."}]},
            ]
            answer = client.messages.create(**{**request, "messages": turns})
            expect(answer.stop_reason == "end_turn" and "sunny" in answer.content[0].text, answer)

        @check
        def a_busy_server_is_overloaded(client):
            error = raised(anthropic.APIStatusError, lambda: client.messages.create(**ask("be busy")))
            expect(error.body["error"]["type"] == "overloaded_error", error.body)
            expect(error.status_code == 529, error)

        @check
        def an_error_inside_a_stream_is_raised(client):
            def read():
                for _ in client.messages.create(**ask("break off", stream=True)):
                    pass
            error = raised(anthropic.APIStatusError, read)
            expect(error.body["error"]["type"] == "api_error", error.body)
    else:
        @check
        def a_tool_loop_goes_round(client):
            for choice in [{"type": "any"}, {"type": "tool", "name": "get_weather"}]:
                request = ask("Weather: Oslo?", tools=[FORCED], tool_choice=choice, max_tokens=200)
                called = client.messages.create(**request)
                [use] = called.content
                expect(called.stop_reason == "tool_use", called)
                is_call(use)
                with client.messages.stream(**request) as stream:
                    [streamed] = stream.get_final_message().content
                expect(streamed.input == use.input, streamed)
                result = {"type": "tool_result", "tool_use_id": use.id, "content": "It is sunny."}
                turns = request["messages"] + [
                    {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
                answer = client.messages.create(**{**request, "messages": turns, "tool_choice": {"type": "none"}})
                expect(answer.stop_reason == "end_turn" and answer.content[0].text, answer)

        @check
        def a_tool_is_called_behind_reasoning_and_the_reasoning_goes_back(client):
            request = ask("Weather: Oslo?", tools=[FORCED], tool_choice={"type": "any"}, max_tokens=2_000,
                          thinking={"type": "enabled", "budget_tokens": 1024}, extra_body=None)
            called = client.messages.create(**request)
            thought, use = called.content
            expect(thought.type == "thinking" and thought.thinking and thought.signature, called)
            is_call(use)
            result = {"type": "tool_result", "tool_use_id": use.id, "content": "It is sunny."}
            turns = request["messages"] + [
                {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
            answer = client.messages.create(**{**request, "messages": turns, "tool_choice": {"type": "none"}})
            expect([block.type for block in answer.content] == ["thinking", "text"], answer)

        @check
        def a_schema_holds_for_the_answer(client):
            form = {"format": {"type": "json_schema", "schema": ANSWER}}
            for thinking in [{"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}]:
                request = ask("What is 17 + 25?", output_config=form, thinking=thinking, max_tokens=2_000)
                whole = client.messages.create(**request)
                with client.messages.stream(**request) as stream:
                    streamed = stream.get_final_message()
                for message in [whole, streamed]:
                    value = json.loads(message.content[-1].text)
                    expect(list(value) == ["answer"] and type(value["answer"]) is int, message)
                    expect(message.stop_reason == "end_turn", message)
    run(anthropic.Anthropic(base_url=OPTIONS.url, api_key=OPTIONS.key, max_retries=0))
