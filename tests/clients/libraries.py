"""What Python libraries for agents and structured answers do with Kvasir, in front of `script.json`.

Each function is a library in one of its ways; it asks, streams, loops over a tool and gets a structured answer, where the library
has these. Arguments: the server's root, the model, and the names of the functions to run; all without names.
"""

import asyncio
import os
import sys
import traceback

from pydantic import BaseModel

URL, MODEL = sys.argv[1:3]
KEY = "none"
WEATHER = "Weather: Oslo?"
THINK = "Think: 2 + 2?"
PERSON = "Ada is 36 years old. Extract with {}."


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def get_weather(city: str, days: int = 1) -> str:
    """The weather of a city.

    Args:
        city: Its name.
        days: How far ahead.
    """
    assert (city, days) == ("Oslo", 3), (city, days)
    return "It is sunny."


def ada(person):
    assert (person.name, person.age) == ("Ada", 36), person


def sunny(text):
    assert text == "It is sunny in Oslo.", text


def greeted(text):
    assert text == "17 + 25 is 42.", text


def litellm_openai():
    litellm_chat(f"openai/{MODEL}", f"{URL}/v1")
    litellm_responses()


def litellm_anthropic():
    # The library asks only models for it whose names it knows.
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 64}, "allowed_openai_params": ["thinking"]}
    litellm_chat(f"anthropic/{MODEL}", URL, **thinking)


def litellm_deepseek():
    litellm_chat(f"deepseek/{MODEL}", f"{URL}/beta")


def litellm_chat(model, base, **thinking):
    import litellm

    thinking = thinking or {"reasoning_effort": "high"}

    base = {"model": model, "api_base": base, "api_key": KEY, "max_tokens": 200, "num_retries": 0}
    user = lambda text: [{"role": "user", "content": text}]
    whole = litellm.completion(messages=user("What is 17 + 25?"), **base)
    greeted(whole.choices[0].message.content)
    assert 0 < whole.usage.prompt_tokens and 0 < whole.usage.completion_tokens, whole.usage
    parts = litellm.completion(messages=user("What is 17 + 25?"), stream=True, **base)
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    greeted(text)
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}]
    called = litellm.completion(messages=user(WEATHER), tools=tools, **base).choices[0]
    assert called.finish_reason == "tool_calls", called
    [call] = called.message.tool_calls
    said = eval(f"get_weather(**{call.function.arguments})")
    turns = [*user(WEATHER), called.message, {"role": "tool", "tool_call_id": call.id, "content": said}]
    sunny(litellm.completion(messages=turns, tools=tools, **base).choices[0].message.content)
    thought = litellm.completion(messages=user(THINK), **thinking, **base).choices[0].message
    assert thought.reasoning_content == "Two and two make four." and thought.content == "It is 4.", thought
    shaped = litellm.completion(messages=user(PERSON.format("JSON")), response_format=Person, **base)
    ada(Person.model_validate_json(shaped.choices[0].message.content))


def litellm_responses():
    import litellm

    response = litellm.responses(model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key=KEY, input="What is 17 + 25?",
                                 reasoning={"effort": "none"})
    assert any(item.type == "message" for item in response.output), response


def langchain_openai_chat():
    langchain_openai(use_responses_api=False)


def langchain_openai_responses():
    langchain_openai(use_responses_api=True)


def langchain_openai(**how):
    from langchain_openai import ChatOpenAI

    effort = {"reasoning": {"effort": "none"}} if how["use_responses_api"] else {"reasoning_effort": "none"}
    chat = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=KEY, max_retries=0, stream_usage=True, **effort,
                      **how)
    langchain_loop(chat)
    ada(chat.with_structured_output(Person).invoke(PERSON.format("JSON")))
    ada(chat.with_structured_output(Person, method="function_calling").invoke(PERSON.format("Person")))
    ada(chat.with_structured_output(Person, method="json_mode").invoke(PERSON.format("JSON")))


def langchain_anthropic():
    from langchain_anthropic import ChatAnthropic

    chat = ChatAnthropic(model=MODEL, base_url=URL, api_key=KEY, max_retries=0, max_tokens=400, thinking={"type": "disabled"})
    langchain_loop(chat)
    ada(chat.with_structured_output(Person).invoke(PERSON.format("Person")))
    ada(chat.with_structured_output(Person, method="json_schema").invoke(PERSON.format("JSON")))
    deep = ChatAnthropic(model=MODEL, base_url=URL, api_key=KEY, max_retries=0, max_tokens=2000,
                         thinking={"type": "enabled", "budget_tokens": 1024})
    kinds = [block["type"] for block in deep.invoke(THINK).content]
    assert kinds == ["thinking", "text"], kinds


def langchain_loop(chat):
    from langchain_core.messages import HumanMessage, ToolMessage

    greeted(chat.invoke("What is 17 + 25?").text)
    chunks = list(chat.stream("What is 17 + 25?"))
    greeted("".join(chunk.text for chunk in chunks))
    assert any(chunk.usage_metadata for chunk in chunks), chunks
    bound = chat.bind_tools([get_weather])
    called = bound.invoke(WEATHER)
    [call] = called.tool_calls
    result = ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
    sunny(bound.invoke([HumanMessage(WEATHER), called, result]).text)
    streamed = None
    for chunk in bound.stream(WEATHER):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.tool_calls[0]["args"] == {"city": "Oslo", "days": 3}, streamed


def instructor_openai():
    import instructor
    from openai import OpenAI

    client = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    for mode, how in [("TOOLS", "Person"), ("TOOLS_STRICT", "Person"), ("JSON", "JSON"), ("JSON_SCHEMA", "JSON"), ("MD_JSON", "JSON")]:
        shaped = instructor.from_openai(client, mode=instructor.Mode[mode])
        messages = [{"role": "user", "content": PERSON.format(how)}]
        ada(shaped.chat.completions.create(model=MODEL, response_model=Person, messages=messages, max_retries=0,
                                           reasoning_effort="none"))


def instructor_anthropic():
    import instructor
    from anthropic import Anthropic

    client = Anthropic(base_url=URL, api_key=KEY, max_retries=0)
    for mode, how in [("ANTHROPIC_TOOLS", "Person"), ("ANTHROPIC_JSON", "JSON")]:
        shaped = instructor.from_anthropic(client, mode=instructor.Mode[mode])
        messages = [{"role": "user", "content": PERSON.format(how)}]
        ada(shaped.messages.create(model=MODEL, response_model=Person, messages=messages, max_tokens=400, max_retries=0,
                                   thinking={"type": "disabled"}))


def pydantic_ai_chat():
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    pydantic_ai(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)))


def pydantic_ai_responses():
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    pydantic_ai(OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)))


def pydantic_ai_anthropic():
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    pydantic_ai(AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key=KEY)), native=False)


def pydantic_ai(model, native=True):
    from pydantic_ai import Agent, NativeOutput, PromptedOutput

    agent = Agent(model, tools=[get_weather])
    sunny(agent.run_sync(WEATHER).output)

    async def streamed():
        async with agent.run_stream("What is 17 + 25?") as result:
            return [text async for text in result.stream_text(delta=True)]

    greeted("".join(asyncio.run(streamed())))
    ada(Agent(model, output_type=Person).run_sync(PERSON.format("final_result")).output)
    # Of Anthropic's models the library knows by name which can do it.
    if native:
        ada(Agent(model, output_type=NativeOutput(Person)).run_sync(PERSON.format("JSON")).output)
    ada(Agent(model, output_type=PromptedOutput(Person)).run_sync(PERSON.format("JSON")).output)


def openai_agents_responses():
    from agents import OpenAIResponsesModel

    openai_agents(OpenAIResponsesModel)


def openai_agents_chat():
    from agents import OpenAIChatCompletionsModel

    openai_agents(OpenAIChatCompletionsModel)


def openai_agents(kind):
    from agents import Agent, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    async def run():
        model = kind(model=MODEL, openai_client=AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0))
        tool = function_tool(get_weather)
        weather = Agent(name="Weather", instructions="Help.", model=model, tools=[tool])
        sunny((await Runner.run(weather, WEATHER)).final_output)
        streamed = Runner.run_streamed(weather, WEATHER)
        kinds = {event.type async for event in streamed.stream_events()}
        assert {"raw_response_event", "run_item_stream_event"} <= kinds, kinds
        sunny(streamed.final_output)
        shaped = Agent(name="Extractor", instructions="Extract.", model=model, output_type=Person)
        ada((await Runner.run(shaped, PERSON.format("JSON"))).final_output)
        triage = Agent(name="Triage", instructions="Hand over.", model=model, handoffs=[weather])
        handed = await Runner.run(triage, "Hand over: Weather: Oslo?")
        assert handed.last_agent.name == "Weather", handed
        sunny(handed.final_output)

    asyncio.run(run())


def main():
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    known = ["litellm_openai", "litellm_anthropic", "litellm_deepseek", "langchain_openai_chat", "langchain_openai_responses",
             "langchain_anthropic", "instructor_openai", "instructor_anthropic", "pydantic_ai_chat", "pydantic_ai_responses",
             "pydantic_ai_anthropic", "openai_agents_chat", "openai_agents_responses"]
    names = sys.argv[3:] or known
    failed = 0
    for name in names:
        try:
            globals()[name]()
            print(f"ok {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
    print(f"{len(names) - failed} of {len(names)} hold")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
