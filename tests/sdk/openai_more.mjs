// Responses, Completions, tools, schemas and thinking through the JavaScript library of OpenAI.

import OpenAI, { BadRequestError, NotFoundError } from 'openai';
import { check, expect, options, raised, run } from './checks.mjs';

const client = new OpenAI({ baseURL: `${options.url}/v1`, apiKey: options.key, maxRetries: 0 });
const isScript = options.engine === 'script';
const { model } = options;
const respond = (input, more = {}) => ({
  model,
  input,
  temperature: 0,
  max_output_tokens: 200,
  reasoning: { effort: 'none' },
  ...more,
});
const chat = (messages, more = {}) => ({
  model,
  messages,
  reasoning_effort: 'none',
  temperature: 0,
  max_tokens: 200,
  ...more,
});
const asked = [{ role: 'user', content: 'Weather: Oslo?' }];
// Every member asked for, and none that can be long: what a small model is held to when it must call.
const parameters = {
  type: 'object',
  properties: { city: { type: 'string', maxLength: 12 }, days: { type: 'integer' } },
  required: ['city', 'days'],
  additionalProperties: false,
};
const schema = {
  type: 'object',
  properties: { answer: { type: 'integer' } },
  required: ['answer'],
  additionalProperties: false,
};
// The script calls by itself, and would go on in words that are not its own if it were held to anything.
const choice = isScript ? 'auto' : 'required';
const strict = !isScript;

function isCall(name, text) {
  const input = JSON.parse(text);
  expect(name === 'get_weather' && Object.keys(input).join() === 'city,days', name, input);
  expect(input.city.length <= 12 && Number.isInteger(input.days), input);
  if (isScript) expect(input.city === 'Oslo' && input.days === 3, input);
}

function isAnswer(text) {
  const value = JSON.parse(text);
  expect(Object.keys(value).join() === 'answer' && Number.isInteger(value.answer), text);
}

check('a response is whole, and its stream is gapless and says the same', async () => {
  const whole = await client.responses.create(respond('What is 17 + 25?'));
  expect(whole.status === 'completed' && whole.output_text.includes('42'), whole);
  expect(whole.usage.input_tokens + whole.usage.output_tokens === whole.usage.total_tokens, whole.usage);
  const stream = client.responses.stream(respond('What is 17 + 25?'));
  const kinds = [];
  for await (const event of stream) {
    expect(event.sequence_number === kinds.length, event);
    kinds.push(event.type);
  }
  expect(kinds[0] === 'response.created' && kinds.at(-1) === 'response.completed', kinds);
  expect((await stream.finalResponse()).output_text === whole.output_text, kinds);
});

check('a stored response is continued and an unknown one refused', async () => {
  const first = await client.responses.create(respond('What is 17 + 25?'));
  const second = await client.responses.create(respond('And again?', { previous_response_id: first.id }));
  expect(second.previous_response_id === first.id, second);
  expect((await client.responses.retrieve(first.id)).id === first.id);
  await raised(NotFoundError, client.responses.retrieve('resp_none'));
  await raised(BadRequestError, client.responses.create(respond('hi', { temperature: 9 })));
});

check('a short response is incomplete', async () => {
  const response = await client.responses.create(respond('Tell me a long story.', { max_output_tokens: 2 }));
  expect(response.status === 'incomplete', response);
  expect(response.incomplete_details.reason === 'max_output_tokens', response);
});

check('a completion goes on with its prompt', async () => {
  const request = { model, prompt: 'What is 17 + 25?', max_tokens: 8, temperature: 0 };
  const whole = await client.completions.create(request);
  expect(whole.object === 'text_completion' && whole.choices[0].index === 0, whole);
  let text = '';
  for await (const chunk of await client.completions.create({ ...request, stream: true })) {
    text += chunk.choices[0]?.text ?? '';
  }
  expect(text === whole.choices[0].text, text, whole);
  const many = await client.completions.create({ ...request, prompt: ['One', 'Two'], n: 2 });
  expect(many.choices.map(({ index }) => index).join() === '0,1,2,3', many);
});

check('a tool loop of chat goes round', async () => {
  const tools = [{ type: 'function', function: { name: 'get_weather', parameters, strict } }];
  const request = chat(asked, { tools, tool_choice: choice });
  const called = (await client.chat.completions.create(request)).choices[0];
  const [call] = called.message.tool_calls;
  expect(called.finish_reason === 'tool_calls' && called.message.tool_calls.length === 1, called);
  isCall(call.function.name, call.function.arguments);
  const { choices } = await client.chat.completions.stream(request).finalChatCompletion();
  expect(choices[0].message.tool_calls[0].function.arguments === call.function.arguments, choices);
  const turns = [...asked, called.message, { role: 'tool', tool_call_id: call.id, content: 'It is sunny.' }];
  const answer = (await client.chat.completions.create(chat(turns, { tools, tool_choice: 'none' }))).choices[0];
  expect(answer.finish_reason === 'stop' && answer.message.content && !answer.message.tool_calls, answer);
  if (isScript) expect(answer.message.content.includes('sunny'), answer);
});

check("the library's own tool runner goes round", async () => {
  const seen = [];
  const look = (input) => {
    seen.push(input);
    return 'It is sunny.';
  };
  const tool = { name: 'get_weather', description: 'The weather.', parameters, strict, parse: JSON.parse, function: look };
  // A choice that names a tool ends the runner with its first call; the small model calls only when it must.
  const named = { type: 'function', function: { name: 'get_weather' } };
  const request = chat(asked, { tools: [{ type: 'function', function: tool }], tool_choice: isScript ? 'auto' : named });
  const runner = client.chat.completions.runTools(request);
  await runner.done();
  expect(seen.length === 1 && Object.keys(seen[0]).join() === 'city,days', seen);
  expect(runner.messages.some(({ role, content }) => role === 'tool' && content === 'It is sunny.'), runner.messages);
  if (isScript) expect((await runner.finalContent()).includes('sunny'), runner.messages);
});

check('a tool loop of responses goes round', async () => {
  const tools = [{ type: 'function', name: 'get_weather', parameters, strict }];
  const request = respond('Weather: Oslo?', { tools, tool_choice: choice });
  const response = await client.responses.create(request);
  const call = response.output.find(({ type }) => type === 'function_call');
  isCall(call.name, call.arguments);
  const streamed = await client.responses.stream(request).finalResponse();
  expect(streamed.output.find(({ type }) => type === 'function_call').arguments === call.arguments, streamed);
  const output = { type: 'function_call_output', call_id: call.call_id, output: 'It is sunny.' };
  const input = [...asked, ...response.output, output];
  const answer = await client.responses.create(respond(input, { tools, tool_choice: 'none' }));
  expect(answer.status === 'completed' && answer.output_text, answer);
  if (isScript) expect(answer.output_text.includes('sunny'), answer);
});

check('thinking is apart from the answer, in chat and in responses', async () => {
  const question = 'Think: what is 2 + 2?';
  const thinking = chat([{ role: 'user', content: question }], { reasoning_effort: 'high', max_tokens: 2000 });
  const { message } = (await client.chat.completions.create(thinking)).choices[0];
  expect(message.reasoning_content && message.content.includes('4'), message);
  expect(!`${message.content}${message.reasoning_content}`.includes('</think>'), message);
  let reasoning = '';
  for await (const chunk of await client.chat.completions.create({ ...thinking, stream: true })) {
    reasoning += chunk.choices[0]?.delta.reasoning_content ?? '';
  }
  expect(reasoning === message.reasoning_content, reasoning, message);
  const request = respond(question, { reasoning: { effort: 'high' }, max_output_tokens: 2000 });
  const whole = await client.responses.create(request);
  const streamed = await client.responses.stream(request).finalResponse();
  for (const { output, usage } of [whole, streamed]) {
    expect(output.map(({ type }) => type).join() === 'reasoning,message', output);
    expect(output[0].content[0].type === 'reasoning_text' && output[0].content[0].text, output);
    expect(usage.output_tokens_details.reasoning_tokens > 0, usage);
  }
});

if (!isScript) {
  check('a schema holds for the answer, also behind reasoning', async () => {
    const question = [{ role: 'user', content: 'What is 17 + 25?' }];
    const format = { type: 'json_schema', json_schema: { name: 'answer', schema, strict: true } };
    for (const effort of ['none', 'high']) {
      const more = { response_format: format, reasoning_effort: effort, max_tokens: 2000 };
      const { choices } = await client.chat.completions.create(chat(question, more));
      isAnswer(choices[0].message.content);
    }
    const text = { format: { type: 'json_schema', name: 'answer', schema, strict: true } };
    isAnswer((await client.responses.create(respond('What is 17 + 25?', { text }))).output_text);
    const parsed = await client.responses.parse(respond('What is 17 + 25?', { text }));
    isAnswer(parsed.output_text);
  });
}

await run();
