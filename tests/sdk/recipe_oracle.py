"""Requests and answers through DeepSeek's own recipe (its Python package) and through a server: the same prompts, token by token,
and the same readings of the same answers.

The cases are in recipe_cases.json: requests of three protocols, some with the text that the model answers; `--script FILE` writes
the script that makes a server answer so. Where we differ on purpose is in recipe_divergences.json, by name of the case, with the
reason; a difference that is not listed there fails, and so does an entry whose difference is gone.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import deepseek_recipe as recipe

HERE = Path(__file__).parent
PROTOCOLS = {
    "chat": ("/v1/chat/completions", recipe.ChatCompletionRequest, recipe.ChatCompletionResponse),
    "messages": ("/v1/messages", recipe.MessagesRequest, recipe.MessagesResponse),
    "responses": ("/v1/responses", recipe.ResponsesRequest, recipe.ResponsesResponse),
}
REFUSED = "refused"


def marker(case):
    return f"<{case['name']}>"


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def body_of(case, model):
    """The request, with the name of its case, by which the script knows it, where it says $NAME."""
    request = json.loads(json.dumps(case["request"]).replace("$NAME", marker(case)))
    body = {"model": model, **request}
    if case["protocol"] == "messages":
        body.setdefault("max_tokens", 400)
    return body


class Oracle:
    """The recipe. Requests, generators and chunks are used up by what takes them, so each is made anew."""

    def __init__(self, tokenizer, model):
        self.tokenizer = str(tokenizer)
        self.model = model

    def options(self):
        return recipe.ConversionOptions().with_model_alias(self.model, recipe.ModelVersion.DeepseekV41Flash)

    def load(self):
        return recipe.Tokenizer.from_file(self.tokenizer)

    def convert(self, case):
        request = PROTOCOLS[case["protocol"]][1](json.dumps(body_of(case, self.model)))
        return request.convert(self.options())

    def prompt(self, case):
        try:
            conversation = self.convert(case).conversation
        except (ValueError, recipe.ConversionError):
            return REFUSED
        return recipe.DeepseekV41Encoding().with_tokenizer(self.load()).encode(conversation)

    def answer(self, case):
        """What the answer is read as; the usage is nobody's business here."""
        _, request_type, response_type = PROTOCOLS[case["protocol"]]
        converted = self.convert(case)
        generator = request_type.chunk_generator(converted, "id", self.model)
        processor = recipe.StreamProcessor(generator, converted.parsing_options, self.load())
        response = response_type("id", self.model, 0, 0, 0)
        ids = self.load().encode(case["answer"])
        chunks = [recipe.InferenceChunk.ready()]
        chunks += [recipe.InferenceChunk.tokens([token]) for token in ids]
        chunks.append(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop))
        for chunk in chunks:
            for event in processor.push(chunk):
                response.accumulate(event)
            if processor.finished:
                break
        return json.loads(response.to_json())


class Server:
    def __init__(self, url, admin, model):
        self.url, self.admin, self.model = url, admin, model

    def prompt(self, case):
        url = f"{self.admin}/debug/prompt?protocol={case['protocol']}&tokens=true"
        status, text = post(url, body_of(case, self.model))
        if status in (400, 404):
            return REFUSED
        assert status == 200, text
        return json.loads(text)["tokens"]

    def events(self, case):
        status, text = post(self.url + PROTOCOLS[case["protocol"]][0], {**body_of(case, self.model), "stream": True})
        assert status == 200, text
        data = [line[len("data: "):] for line in text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in data if line != "[DONE]"]

    def answer(self, case):
        events = self.events(case)
        if case["protocol"] == "responses":
            return events[-1]["response"]
        return accumulated_chat(events) if case["protocol"] == "chat" else accumulated_messages(events)


def accumulated_chat(chunks):
    message = {"content": None, "reasoning_content": None, "tool_calls": []}
    reason = None
    for choice in (chunk["choices"][0] for chunk in chunks if chunk["choices"]):
        for name in ("content", "reasoning_content"):
            if choice["delta"].get(name) is not None:
                message[name] = (message[name] or "") + choice["delta"][name]
        for delta in choice["delta"].get("tool_calls") or []:
            if delta["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"function": {"name": delta["function"]["name"], "arguments": ""}})
            message["tool_calls"][delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    return {"choices": [{"message": message, "finish_reason": reason}]}


def accumulated_messages(events):
    content, last = [], {}
    for event in events:
        if event["type"] == "content_block_start":
            content.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            for name, member in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                content[event["index"]][member] = content[event["index"]].get(member, "") + delta.get(name, "")
        elif event["type"] == "message_delta":
            last = event["delta"]
    for block in content:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"] or "{}")
    return {"content": content, **last}


def parsed(arguments):
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def reading(protocol, answer):
    """The part of an answer that says what the model said."""
    if protocol == "chat":
        choice = answer["choices"][0]
        message = choice["message"]
        calls = [(call["function"]["name"], parsed(call["function"]["arguments"])) for call in message.get("tool_calls") or []]
        return [message.get("reasoning_content") or "", message.get("content") or "", calls, choice["finish_reason"]]
    if protocol == "messages":
        named = {"text": "text", "thinking": "thinking", "tool_use": "input"}
        blocks = [[block["type"], block.get("name"), block[named[block["type"]]]] for block in answer["content"]]
        blocks = [block for block in blocks if block[2] != ""]
        return [blocks, answer["stop_reason"], answer["stop_sequence"]]
    items = []
    for item in answer["output"]:
        text = "".join(part["text"] for part in item.get("content") or [])
        items.append([item["type"], item.get("name"), parsed(item.get("arguments", "")), item.get("input"), text])
    return [items, answer["status"]]


def compare(case, server, oracle):
    """What differs: the prompt, the answer, or nothing."""
    ours, theirs = server.prompt(case), oracle.prompt(case)
    if ours != theirs:
        return f"prompt: ours {ours}, theirs {theirs}"
    if "answer" not in case or theirs == REFUSED:
        return None
    ours, theirs = (reading(case["protocol"], side.answer(case)) for side in (server, oracle))
    return None if json.dumps(ours) == json.dumps(theirs) else f"answer: ours {ours}, theirs {theirs}"


def script(cases):
    """Answers by what the user says: each case with an answer says its own name."""
    answers = [{"match": marker(case), "text": case["answer"]} for case in cases if "answer" in case]
    return {"answers": answers}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--script", help="write the script and end")
    parser.add_argument("--url", help="root of the server, without /v1")
    parser.add_argument("--admin", help="root of its admin listener")
    parser.add_argument("--tokenizer")
    parser.add_argument("--model", default="seedling")
    options = parser.parse_args()
    cases = json.loads((HERE / "recipe_cases.json").read_text())
    if options.script:
        Path(options.script).write_text(json.dumps(script(cases)))
        return
    reasons = json.loads((HERE / "recipe_divergences.json").read_text())
    assert len({case["name"] for case in cases}) == len(cases), "names of cases are unique"
    unknown = set(reasons) - {case["name"] for case in cases}
    failed = [f"{name} is listed as a divergence and is no case" for name in unknown]
    server, oracle = Server(options.url, options.admin, options.model), Oracle(options.tokenizer, options.model)
    for case in cases:
        differs, listed = compare(case, server, oracle), case["name"] in reasons
        if differs and not listed:
            failed.append(f"{case['name']}: {differs}")
        if listed and not differs:
            failed.append(f"{case['name']} does not differ any more; take it off the list")
    print("\n".join(failed))
    print(f"{len(cases) - len(failed)} of {len(cases)} cases hold, {len(reasons)} divergences are meant")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
