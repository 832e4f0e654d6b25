// What JavaScript libraries for agents and structured answers do with Kvasir, in front of `script.json`.
//
// Each function is a library in one of its ways, as in libraries.py. Arguments: the server's root, the model, and the names of the
// functions to run; all without names.

import assert from "node:assert/strict";

const [URL_, MODEL, ...NAMES] = process.argv.slice(2);
const KEY = "none";
const WEATHER = "Weather: Oslo?";
const person = (how) => `Ada is 36 years old. Extract with ${how}.`;
const ADA = { name: "Ada", age: 36 };

async function aiSdk(model, { thinking, shapes = true }) {
  const { generateText, streamText, Output, stepCountIs, tool } = await import("ai");
  const { z } = await import("zod");
  const whole = await generateText({ model, prompt: "What is 17 + 25?", maxRetries: 0 });
  assert.ok(whole.text.endsWith("17 + 25 is 42."), whole.text);
  assert.ok(0 < whole.usage.inputTokens && 0 < whole.usage.outputTokens, JSON.stringify(whole.usage));
  const streamed = streamText({ model, prompt: "What is 17 + 25?", maxRetries: 0 });
  let text = "";
  for await (const part of streamed.textStream) text += part;
  assert.ok(text.endsWith("17 + 25 is 42."), text);
  const seen = [];
  const execute = async ({ city, days }) => (seen.push([city, days]), "It is sunny.");
  const inputSchema = z.object({ city: z.string(), days: z.number().int() });
  const tools = { get_weather: tool({ description: "The weather of a city.", inputSchema, execute }) };
  const loop = { model, prompt: WEATHER, tools, stopWhen: stepCountIs(4), maxRetries: 0 };
  const answered = await generateText(loop);
  assert.deepEqual([answered.text, answered.steps.length, seen], ["It is sunny in Oslo.", 2, [["Oslo", 3]]]);
  const watched = streamText(loop);
  const kinds = new Set();
  for await (const part of watched.fullStream) kinds.add(part.type);
  for (const kind of ["tool-input-start", "tool-input-delta", "tool-call", "tool-result", "finish"]) assert.ok(kinds.has(kind), kind);
  assert.equal(await watched.text, "It is sunny in Oslo.");
  if (shapes) {
    const schema = z.object({ name: z.string(), age: z.number().int() });
    const output = Output.object({ schema });
    const shaped = await generateText({ model, prompt: person("JSON"), output, maxRetries: 0 });
    assert.deepEqual(shaped.output, ADA);
  }
  if (thinking) {
    const thought = await generateText({ model, prompt: "Think: 2 + 2?", maxRetries: 0, ...thinking });
    assert.equal(thought.reasoningText, "Two and two make four.");
    assert.equal(thought.text, "It is 4.");
  }
}

const CHECKS = {
  async ai_openai_responses() {
    const { createOpenAI } = await import("@ai-sdk/openai");
    await aiSdk(createOpenAI({ baseURL: `${URL_}/v1`, apiKey: KEY }).responses(MODEL), {});
  },
  async ai_openai_chat() {
    const { createOpenAI } = await import("@ai-sdk/openai");
    await aiSdk(createOpenAI({ baseURL: `${URL_}/v1`, apiKey: KEY }).chat(MODEL), {});
  },
  async ai_anthropic() {
    const { createAnthropic } = await import("@ai-sdk/anthropic");
    const thinking = { providerOptions: { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } } };
    await aiSdk(createAnthropic({ baseURL: `${URL_}/v1`, apiKey: KEY })(MODEL), { thinking });
  },
  async ai_openai_compatible() {
    const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
    const provider = createOpenAICompatible({ name: "kvasir", baseURL: `${URL_}/v1`, apiKey: KEY, includeUsage: true,
      supportsStructuredOutputs: true });
    await aiSdk(provider(MODEL), { thinking: {} });
  },
  async ai_deepseek() {
    const { createDeepSeek } = await import("@ai-sdk/deepseek");
    await aiSdk(createDeepSeek({ baseURL: URL_, apiKey: KEY })(MODEL), { thinking: {} });
  },
  async langchain_chat() {
    await langchain({ useResponsesApi: false, reasoning: { effort: "none" } });
  },
  async langchain_responses() {
    await langchain({ useResponsesApi: true, reasoning: { effort: "none" } });
  },
};

async function langchain(how) {
  const { ChatOpenAI } = await import("@langchain/openai");
  const { tool } = await import("@langchain/core/tools");
  const { HumanMessage, ToolMessage } = await import("@langchain/core/messages");
  const { z } = await import("zod");
  const chat = new ChatOpenAI({ model: MODEL, apiKey: KEY, maxRetries: 0, configuration: { baseURL: `${URL_}/v1` }, ...how });
  assert.ok((await chat.invoke("What is 17 + 25?")).text.endsWith("17 + 25 is 42."));
  let text = "";
  for await (const chunk of await chat.stream("What is 17 + 25?")) text += chunk.text;
  assert.ok(text.endsWith("17 + 25 is 42."), text);
  const schema = z.object({ city: z.string(), days: z.number().int() });
  const weather = tool(async () => "It is sunny.", { name: "get_weather", description: "The weather of a city.", schema });
  const bound = chat.bindTools([weather]);
  const called = await bound.invoke(WEATHER);
  assert.deepEqual(called.tool_calls[0].args, { city: "Oslo", days: 3 });
  const result = new ToolMessage({ content: "It is sunny.", tool_call_id: called.tool_calls[0].id });
  assert.equal((await bound.invoke([new HumanMessage(WEATHER), called, result])).text, "It is sunny in Oslo.");
  const Person = z.object({ name: z.string(), age: z.number().int() });
  const byCall = chat.withStructuredOutput(Person, { method: "functionCalling", name: "Person" });
  assert.deepEqual(await byCall.invoke(person("Person")), ADA);
  const bySchema = chat.withStructuredOutput(Person, { method: "jsonSchema", name: "Person" });
  assert.deepEqual(await bySchema.invoke(person("JSON")), ADA);
}

const names = NAMES.length ? NAMES : Object.keys(CHECKS);
let failed = 0;
for (const name of names) {
  try {
    await CHECKS[name]();
    console.log(`ok ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}\n${error.stack}\n${error.responseBody ?? ""}`);
  }
}
console.log(`${names.length - failed} of ${names.length} hold`);
process.exit(failed ? 1 : 0);
