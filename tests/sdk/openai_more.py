"""Responses, Completions, tools and schemas through the Python library of OpenAI."""

import json

import openai

from checks import check, expect, options, raised, run

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def respond(text, **more):
    return {"model": OPTIONS.model, "input": text, "temperature": 0, "max_output_tokens": 48,
            "reasoning": {"effort": "none"}, **more}


def chat(messages, **more):
    return {"model": OPTIONS.model, "messages": messages, "reasoning_effort": "none", "temperature": 0,
            "max_tokens": 48, **more}


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
        def a_schema_holds_for_the_answer(client):
            schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER, "strict": True}}
            asked = [{"role": "user", "content": "What is 17 + 25?"}]
            answer = client.chat.completions.create(**chat(asked, response_format=schema, max_tokens=64))
            expect(set(json.loads(answer.choices[0].message.content)) == {"answer"}, answer)
    run(openai.OpenAI(base_url=OPTIONS.url + "/v1", api_key=OPTIONS.key, max_retries=0))
