// Chat Completions and models through the JavaScript library of OpenAI.

import OpenAI, { APIError, AuthenticationError, BadRequestError, NotFoundError, RateLimitError, InternalServerError } from 'openai';
import { check, expect, options, raised, run } from './checks.mjs';

const client = new OpenAI({ baseURL: `${options.url}/v1`, apiKey: options.key, maxRetries: 0 });
const ask = (text, more = {}) => ({
  model: options.model,
  messages: [{ role: 'user', content: text }],
  reasoning_effort: 'none',
  temperature: 0,
  seed: 7,
  max_tokens: 48,
  ...more,
});
const create = (text, more, of = client) => of.chat.completions.create(ask(text, more));

check('models are listed and found', async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  expect(names.includes(options.model), names);
  expect((await client.models.retrieve(options.model)).id === options.model);
  await raised(NotFoundError, client.models.retrieve('no-such-model'));
});

check('an answer is whole', async () => {
  const answer = await create('What is 17 + 25?');
  const { message, finish_reason: reason } = answer.choices[0];
  expect(message.content.includes('42') && reason === 'stop' && message.refusal === null, answer);
  const { prompt_tokens: prompt, completion_tokens: completion, total_tokens: total } = answer.usage;
  expect(prompt + completion === total, answer.usage);
  expect(answer._request_id, answer);
});

check('a stream says the same and its usage comes last', async () => {
  const whole = await create('What is 17 + 25?');
  const stream = await create('What is 17 + 25?', { stream: true, stream_options: { include_usage: true } });
  let text = '';
  const reasons = [];
  let last;
  for await (const chunk of stream) {
    last = chunk;
    for (const choice of chunk.choices) {
      text += choice.delta.content ?? '';
      reasons.push(choice.finish_reason);
    }
  }
  expect(text === whole.choices[0].message.content, text);
  expect(reasons.pop() === 'stop' && reasons.every((reason) => reason === null), reasons);
  expect(last.choices.length === 0 && last.usage.completion_tokens === whole.usage.completion_tokens, last);
});

check("the library's own accumulator agrees", async () => {
  const runner = client.chat.completions.stream(ask('What is 17 + 25?'));
  const answer = await runner.finalChatCompletion();
  expect(answer.choices[0].message.content.includes('42'), answer);
});

check('errors have their classes', async () => {
  const bad = await raised(BadRequestError, create('hi', { temperature: 3 }));
  expect(bad.status === 400 && bad.param === 'temperature' && bad.code === 'invalid_value', bad);
  expect(bad.requestID, bad);
  const missing = await raised(NotFoundError, create('hi', { model: 'x' }));
  expect(missing.code === 'model_not_found', missing);
  const unknown = client.withOptions({ apiKey: 'sk-wrong' });
  const refused = await raised(AuthenticationError, create('hi', {}, unknown));
  expect(refused.code === 'invalid_api_key', refused);
  const large = await raised(APIError, create('x'.repeat(9 << 20)));
  expect(large.status === 413, large);
});

check('a limited key gets rate limit errors that say how long', async () => {
  const limited = client.withOptions({ apiKey: options['limited-key'] });
  await create('What is 17 + 25?', {}, limited);
  const error = await raised(RateLimitError, create('hi', {}, limited));
  expect(Number(error.headers.get('retry-after')) > 0, error);
});

check('a stream can be left', async () => {
  const stream = await create('hold on', { stream: true, max_tokens: 2000 });
  for await (const chunk of stream) {
    expect(chunk.choices);
    break;
  }
  const controller = new AbortController();
  const other = await client.chat.completions.create(ask('hold on', { stream: true, max_tokens: 2000 }), {
    signal: controller.signal,
  });
  for await (const chunk of other) {
    expect(chunk.choices);
    controller.abort();
    break;
  }
});

if (options.engine === 'script') {
  check('a busy server is an internal server error', async () => {
    const error = await raised(InternalServerError, create('be busy'));
    expect(error.status === 503 && error.code === 'overloaded', error);
  });

  check('an error inside a stream is raised', async () => {
    const read = async () => {
      for await (const chunk of await create('break off', { stream: true })) expect(chunk);
    };
    await raised(APIError, read());
  });
}

await run();
