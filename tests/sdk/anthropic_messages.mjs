// Messages and token counts through the JavaScript library of Anthropic.

import Anthropic, { AuthenticationError, BadRequestError, NotFoundError, RateLimitError } from '@anthropic-ai/sdk';
import { check, expect, options, raised, run } from './checks.mjs';

const client = new Anthropic({ baseURL: options.url, apiKey: options.key, maxRetries: 0 });
const ask = (text, more = {}) => ({
  model: options.model,
  max_tokens: 48,
  temperature: 0,
  thinking: { type: 'disabled' },
  messages: [{ role: 'user', content: text }],
  ...more,
});
const isScript = options.engine === 'script';
// Every member asked for, and none that can be long: what a small model is held to when it must call.
const weather = {
  name: 'get_weather',
  description: 'The weather of a city.',
  input_schema: {
    type: 'object',
    properties: { city: { type: 'string', maxLength: 12 }, days: { type: 'integer' } },
    required: ['city', 'days'],
    additionalProperties: false,
  },
  strict: !isScript,
};
const promptTokens = (usage) =>
  usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0);

check('a message is whole', async () => {
  const message = await client.messages.create(ask('What is 17 + 25?'));
  expect(message.content[0].text.includes('42') && message.stop_reason === 'end_turn', message);
  expect(message._request_id, message);
});

check('a stream says the same', async () => {
  const whole = await client.messages.create(ask('What is 17 + 25?'));
  let text = '';
  const stream = client.messages.stream(ask('What is 17 + 25?')).on('text', (delta) => (text += delta));
  const final = await stream.finalMessage();
  expect(text === whole.content[0].text && final.content[0].text === text, text);
  expect(final.usage.output_tokens === whole.usage.output_tokens, final.usage);
});

check('a count is the later usage', async () => {
  const { usage } = await client.messages.create(ask('What is 17 + 25?'));
  const { max_tokens: _, temperature: __, ...request } = ask('What is 17 + 25?');
  const counted = await client.messages.countTokens(request);
  expect(counted.input_tokens === promptTokens(usage), counted, usage);
});

check('errors have their classes and shape', async () => {
  const bad = await raised(BadRequestError, client.messages.create(ask('hi', { max_tokens: 0 })));
  expect(bad.error.type === 'error' && bad.error.error.type === 'invalid_request_error', bad.error);
  await raised(NotFoundError, client.messages.create(ask('hi', { model: 'x' })));
  const unknown = client.withOptions({ apiKey: 'sk-wrong' });
  await raised(AuthenticationError, unknown.messages.create(ask('hi')));
});

check('a limited key gets rate limit errors', async () => {
  const limited = client.withOptions({ apiKey: options['limited-key'] });
  await limited.messages.create(ask('What is 17 + 25?'));
  await raised(RateLimitError, limited.messages.create(ask('hi')));
});

check('a stream can be left', async () => {
  const stream = client.messages.stream(ask('hold on', { max_tokens: 2000 }));
  for await (const event of stream) {
    if (event.type === 'content_block_delta') break;
  }
  stream.abort();
});

check('thinking is a block of its own', async () => {
  const request = ask('Think: what is 2 + 2?', {
    max_tokens: 2000,
    thinking: { type: 'enabled', budget_tokens: 1024 },
    temperature: undefined,
  });
  const whole = await client.messages.create(request);
  const streamed = await client.messages.stream(request).finalMessage();
  for (const { content } of [whole, streamed]) {
    expect(content.map(({ type }) => type).join() === 'thinking,text', content);
    expect(content[0].thinking && content[0].signature && content[1].text.includes('4'), content);
    expect(!`${content[0].thinking}${content[1].text}`.includes('</think>'), content);
  }
});

check('a tool loop goes round', async () => {
  const choice = isScript ? { type: 'auto' } : { type: 'any' };
  const request = ask('Weather: Oslo?', { tools: [weather], tool_choice: choice, max_tokens: 200 });
  const called = await client.messages.create(request);
  const use = called.content.find(({ type }) => type === 'tool_use');
  expect(called.stop_reason === 'tool_use' && use.name === 'get_weather', called);
  expect(Object.keys(use.input).join() === 'city,days' && Number.isInteger(use.input.days), use);
  if (isScript) expect(use.input.city === 'Oslo' && use.input.days === 3, use);
  const streamed = await client.messages.stream(request).finalMessage();
  const again = streamed.content.find(({ type }) => type === 'tool_use');
  expect(JSON.stringify(again.input) === JSON.stringify(use.input), again, use);
  const result = { type: 'tool_result', tool_use_id: use.id, content: 'It is sunny.' };
  const messages = [
    ...request.messages,
    { role: 'assistant', content: called.content },
    { role: 'user', content: [result] },
  ];
  const answer = await client.messages.create({ ...request, messages, tool_choice: { type: 'none' } });
  expect(answer.stop_reason === 'end_turn' && answer.content[0].text, answer);
  if (isScript) expect(answer.content[0].text.includes('sunny'), answer);
});

if (!isScript) {
  check('a schema holds for the answer, also behind reasoning', async () => {
    const schema = {
      type: 'object',
      properties: { answer: { type: 'integer' } },
      required: ['answer'],
      additionalProperties: false,
    };
    for (const thinking of [{ type: 'disabled' }, { type: 'enabled', budget_tokens: 1024 }]) {
      const more = { output_config: { format: { type: 'json_schema', schema } }, thinking, max_tokens: 2000 };
      const request = ask('What is 17 + 25?', more);
      const whole = await client.messages.create(request);
      const streamed = await client.messages.stream(request).finalMessage();
      for (const { content } of [whole, streamed]) {
        const value = JSON.parse(content.at(-1).text);
        expect(Object.keys(value).join() === 'answer' && Number.isInteger(value.answer), content);
      }
    }
  });
}

await run();
