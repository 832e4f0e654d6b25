// Comments, pings and blank lines of a slow server are no part of any answer, in the JavaScript libraries (behaviour 30).

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { check, expect, options, run } from './checks.mjs';

const openais = new OpenAI({ baseURL: `${options.url}/v1`, apiKey: options.key, maxRetries: 0 });
const anthropics = new Anthropic({ baseURL: options.url, apiKey: options.key, maxRetries: 0 });
const { model } = options;
const asked = [{ role: 'user', content: 'hi' }];
const chat = { model, messages: asked, reasoning_effort: 'none', max_tokens: 48 };
const message = { model, messages: asked, thinking: { type: 'disabled' }, max_tokens: 48 };
const respond = { model, input: 'hi', reasoning: { effort: 'none' }, max_output_tokens: 48 };
const complete = { model, prompt: 'hi', max_tokens: 48 };
const answer = 'one two three';

check('silences are filled in every protocol', async () => {
  const messages = anthropics.messages.create({ ...message, stream: true });
  for (const sent of [
    openais.chat.completions.create({ ...chat, stream: true }),
    openais.completions.create({ ...complete, stream: true }),
    openais.responses.create({ ...respond, stream: true }),
    messages,
  ]) {
    const text = await (await sent.asResponse()).text();
    // The first event of messages waits for the first token.
    if (sent === messages) expect(text.startsWith(': keep-alive'), text);
    const within = text.slice(text.indexOf('data:'), text.lastIndexOf('data:'));
    expect(/^(:|event: ping)/m.test(within), text);
  }
});

check('whole answers have blank lines before them', async () => {
  for (const sent of [
    openais.chat.completions.create(chat),
    openais.completions.create(complete),
    openais.responses.create(respond),
    anthropics.messages.create(message),
  ]) {
    const text = await (await sent.asResponse()).text();
    expect(text.startsWith('\n'), text);
  }
});

check('chat is read through them', async () => {
  const whole = await openais.chat.completions.create(chat);
  expect(whole.choices[0].message.content === answer, whole);
  let text = '';
  for await (const chunk of await openais.chat.completions.create({ ...chat, stream: true })) {
    text += chunk.choices[0].delta.content ?? '';
  }
  expect(text === answer, text);
  expect((await openais.chat.completions.stream(chat).finalContent()) === answer);
});

check('completions are read through them', async () => {
  expect((await openais.completions.create(complete)).choices[0].text === answer);
  let text = '';
  for await (const chunk of await openais.completions.create({ ...complete, stream: true })) {
    text += chunk.choices[0].text;
  }
  expect(text === answer, text);
});

check('responses are read through them', async () => {
  expect((await openais.responses.create(respond)).output_text === answer);
  const stream = openais.responses.stream(respond);
  let count = 0;
  for await (const event of stream) expect(event.sequence_number === count++, event);
  expect((await stream.finalResponse()).output_text === answer);
});

check('messages are read through them', async () => {
  expect((await anthropics.messages.create(message)).content[0].text === answer);
  expect((await anthropics.messages.stream(message).finalText()) === answer);
});

await run();
