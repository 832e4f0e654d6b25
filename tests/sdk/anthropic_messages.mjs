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

await run();
