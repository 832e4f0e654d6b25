"""Responses, Completions, tools and schemas through the Python library of OpenAI."""

import json
import uuid

import openai

from checks import check, expect, options, raised, run

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
# Every member asked for, and none that can be long: what a small model is held to when it must call.
FORCED = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def respond(said, **more):
    return {"model": OPTIONS.model, "input": said, "temperature": 0, "max_output_tokens": 48,
            "reasoning": {"effort": "none"}, **more}


def chat(messages, **more):
    return {"model": OPTIONS.model, "messages": messages, "reasoning_effort": "none", "temperature": 0,
            "max_tokens": 48, **more}


def is_call(name, arguments):
    """Whether a call is one that `FORCED` allows."""
    expect(name == "get_weather" and list(arguments) == ["city", "days"], name, arguments)
    city, days = arguments.values()
    expect(isinstance(city, str) and len(city) <= 12 and type(days) is int, arguments)


def is_answer(text):
    """Whether a text is one that `ANSWER` allows."""
    value = json.loads(text)
    expect(list(value) == ["answer"] and type(value["answer"]) is int, text)


@check
def a_response_is_whole(client):
    response = client.responses.create(**respond("What is 17 + 25?"))
    expect(response.object == "response" and response.status == "completed", response)
    expect("42" in response.output_text and response.error is None, response)
    usage = response.usage
    expect(usage.input_tokens + usage.output_tokens == usage.total_tokens, usage)
    expect(usage.input_tokens_details.cached_tokens <= usage.input_tokens, usage)


@check
def a_responses_stream_is_gapless_and_says_the_same(client):
    whole = client.responses.create(**respond("What is 17 + 25?"))
    with client.responses.stream(**respond("What is 17 + 25?")) as stream:
        events = list(stream)
        final = stream.get_final_response()
    expect([event.sequence_number for event in events] == list(range(len(events))), events)
    kinds = [event.type for event in events]
    expect(kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed", kinds)
    expect(final.output_text == whole.output_text, final)


@check
def a_stored_response_is_continued_and_an_unknown_one_refused(client):
    first = client.responses.create(**respond("What is 17 + 25?"))
    second = client.responses.create(**respond("And again?", previous_response_id=first.id))
    expect(second.status in ("completed", "incomplete"), second)
    expect(second.previous_response_id == first.id, second)
    raised(openai.APIStatusError, lambda: client.responses.create(**respond("hi", previous_response_id="resp_none")))


@check
def a_short_response_is_incomplete(client):
    response = client.responses.create(**respond("Tell me a long story.", max_output_tokens=2))
    expect(response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens", response)


@check
def responses_errors_have_their_classes(client):
    raised(openai.BadRequestError, lambda: client.responses.create(**respond("hi", temperature=9)))
    raised(openai.NotFoundError, lambda: client.responses.create(**respond("hi", model="x")))
    raised(openai.NotFoundError, lambda: client.responses.retrieve("resp_none"))


@check
def a_completion_goes_on_with_its_prompt(client):
    request = {"model": OPTIONS.model, "prompt": "What is 17 + 25?", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**request)
    expect(whole.object == "text_completion" and whole.choices[0].index == 0, whole)
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(**request, stream=True) if chunk.choices)
    expect(text == whole.choices[0].text, text)
    many = client.completions.create(**{**request, "prompt": ["One", "Two"]}, n=2)
    expect([choice.index for choice in many.choices] == [0, 1, 2, 3], many)


@check
def several_answers_have_indexes(client):
    answer = client.chat.completions.create(**chat([{"role": "user", "content": "What is 17 + 25?"}], n=2))
    expect([choice.index for choice in answer.choices] == [0, 1], answer)
    expect(all(choice.finish_reason == "stop" for choice in answer.choices), answer)


if __name__ == "__main__":
    OPTIONS = options()
    if OPTIONS.engine == "script":
        @check
        def tools_are_called_and_their_results_go_back(client):
            tools = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]
            asked = [{"role": "user", "content": "Weather: Oslo?"}]
            called = client.chat.completions.create(**chat(asked, tools=tools, max_tokens=200)).choices[0]
            expect(called.finish_reason == "tool_calls", called)
            [call] = called.message.tool_calls
            expect(call.function.name == "get_weather", call)
            expect(json.loads(call.function.arguments) == {"city": "Oslo", "days": 3}, call)
            with client.chat.completions.stream(**chat(asked, tools=tools, max_tokens=200)) as stream:
                final = stream.get_final_completion().choices[0]
            expect(json.loads(final.message.tool_calls[0].function.arguments) == {"city": "Oslo", "days": 3}, final)
            turns = asked + [called.message, {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."}]
            answer = client.chat.completions.create(**chat(turns, tools=tools, max_tokens=200)).choices[0]
            expect(answer.finish_reason == "stop" and "sunny" in answer.message.content, answer)

        @check
        def a_responses_function_is_called(client):
            tools = [{"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": False}]
            response = client.responses.create(**respond("Weather: Oslo?", tools=tools, max_output_tokens=200))
            [call] = [item for item in response.output if item.type == "function_call"]
            expect(json.loads(call.arguments) == {"city": "Oslo", "days": 3}, call)
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny."}
            items = [{"role": "user", "content": "Weather: Oslo?"}, *response.output, output]
            answer = client.responses.create(**respond(items, tools=tools, max_output_tokens=200))
            expect("sunny" in answer.output_text, answer)
    else:
        @check
        def a_tool_loop_goes_round(client):
            function = {"name": "get_weather", "parameters": FORCED, "strict": True}
            tools = [{"type": "function", "function": function}]
            asked = [{"role": "user", "content": "Weather: Oslo?"}]
            named = {"type": "function", "function": {"name": "get_weather"}}
            for choice in ["required", named]:
                request = chat(asked, tools=tools, tool_choice=choice, max_tokens=200)
                called = client.chat.completions.create(**request).choices[0]
                expect(called.finish_reason == "tool_calls", called)
                [call] = called.message.tool_calls
                is_call(call.function.name, json.loads(call.function.arguments))
                with client.chat.completions.stream(**request) as stream:
                    [streamed] = stream.get_final_completion().choices[0].message.tool_calls
                expect(streamed.function.arguments == call.function.arguments, streamed)
                result = {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."}
                turns = asked + [called.message, result]
                answer = client.chat.completions.create(**chat(turns, tools=tools, tool_choice="none")).choices[0]
                expect(answer.finish_reason == "stop" and answer.message.content, answer)
                expect(not answer.message.tool_calls, answer)

        @check
        def a_tool_is_called_behind_reasoning(client):
            function = {"name": "get_weather", "parameters": FORCED, "strict": True}
            tools = [{"type": "function", "function": function}]
            asked = [{"role": "user", "content": "Weather: Oslo?"}]
            request = chat(asked, tools=tools, tool_choice="required", reasoning_effort="high", max_tokens=2_000)
            called = client.chat.completions.create(**request).choices[0]
            [call] = called.message.tool_calls
            expect(called.finish_reason == "tool_calls" and called.message.reasoning_content, called)
            is_call(call.function.name, json.loads(call.function.arguments))

        @check
        def a_tool_loop_of_responses_goes_round(client):
            tools = [{"type": "function", "name": "get_weather", "parameters": FORCED, "strict": True}]
            request = respond("Weather: Oslo?", tools=tools, tool_choice="required", max_output_tokens=200)
            response = client.responses.create(**request)
            [call] = response.output
            is_call(call.name, json.loads(call.arguments))
            with client.responses.stream(**request) as stream:
                [streamed] = stream.get_final_response().output
            expect(streamed.arguments == call.arguments, streamed)
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny."}
            items = [{"role": "user", "content": "Weather: Oslo?"}, call, output]
            answer = client.responses.create(**respond(items, tools=tools, tool_choice="none"))
            expect(answer.status == "completed" and answer.output_text, answer)
            stored = client.responses.create(
                **respond([output], tools=tools, tool_choice="none", previous_response_id=response.id))
            expect(stored.output_text == answer.output_text, stored)

        @check
        def a_schema_holds_for_the_answer(client):
            schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER, "strict": True}}
            asked = [{"role": "user", "content": "What is 17 + 25?"}]
            for effort in ["none", "high"]:
                request = chat(asked, response_format=schema, reasoning_effort=effort, max_tokens=2_000)
                answer = client.chat.completions.create(**request).choices[0]
                is_answer(answer.message.content)
                expect(answer.finish_reason == "stop", answer)
            text = {"format": {"type": "json_schema", "name": "answer", "schema": ANSWER, "strict": True}}
            request = respond("What is 17 + 25?", text=text)
            is_answer(client.responses.create(**request).output_text)
            with client.responses.stream(**request) as stream:
                is_answer(stream.get_final_response().output_text)

        @check
        def a_response_that_thinks_has_an_item_for_it(client):
            request = respond("Think: what is 2 + 2?", reasoning={"effort": "high"}, max_output_tokens=2_000)
            response = client.responses.create(**request)
            expect([item.type for item in response.output] == ["reasoning", "message"], response)
            [thought] = response.output[0].content
            expect(thought.type == "reasoning_text" and thought.text, thought)
            expect("4" in response.output_text and "</think>" not in response.output_text + thought.text, response)
            expect(0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens, response)
            with client.responses.stream(**request) as stream:
                final = stream.get_final_response()
            expect([item.type for item in final.output] == ["reasoning", "message"], final)

        @check
        def later_answers_to_one_prompt_find_its_blocks(client):
            def fresh():
                # A name of its own: nothing of an earlier run is found.
                words = "".join(f"On day {day} Anna finds {day % 9 + 2} red balls in the garden. " for day in range(60))
                return [{"role": "user", "content": f"Run {uuid.uuid4()}. {words}"}]
            usage = client.chat.completions.create(**chat(fresh(), n=3, max_tokens=4)).usage
            expect(600 < usage.prompt_tokens and usage.prompt_tokens_details.cached_tokens == 0, usage)
            hits = {}
            for chunk in client.chat.completions.create(**chat(fresh(), n=3, max_tokens=4, stream=True)):
                if chunk.choices and chunk.choices[0].finish_reason:
                    hits[chunk.choices[0].index] = chunk.model_extra["kvasir"]["cached_tokens"]
            expect(sorted(hits) == [0, 1, 2] and hits[0] == 0, hits)
            # All blocks but those of the last 268 tokens, which a window and what is not sealed yet take up.
            expect(all(usage.prompt_tokens - 300 < hits[later] for later in [1, 2]), usage, hits)
    run(openai.OpenAI(base_url=OPTIONS.url + "/v1", api_key=OPTIONS.key, max_retries=0))
