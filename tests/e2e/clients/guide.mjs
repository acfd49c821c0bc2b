// Uses of sessions in programs written for another SDK, with plain `fetch`: one function per use, as in an application.
// The arguments are the URL, the key and the use; the output is one line of JSON.

const [url, key, what, ...args] = process.argv.slice(2);

class Refusal extends Error {
  constructor(status, problem) {
    super(problem.error);
    Object.assign(this, { status, code: problem.code });
  }
}

class Client {
  constructor(url, key, lock) {
    Object.assign(this, { url, key, lock });
  }

  async call(method, path, body) {
    const headers = { authorization: `Bearer ${this.key}`, accept: "application/json" };
    if (this.lock) headers["x-ash-lock"] = this.lock;
    if (body !== undefined) headers["content-type"] = "application/json";
    const response = await fetch(`${this.url}/api${path}`, { method, headers, body: JSON.stringify(body) });
    const answer = await response.json();
    if (!response.ok) throw new Refusal(response.status, answer);
    return answer;
  }

  async createSession(options) {
    return (await this.call("POST", "/sessions", { agent: "tester", ...options })).session;
  }

  async resumeSession(id, options = {}) {
    return await this.call("POST", `/sessions/${id}/resume`, options);
  }

  async sendAndWait(id, prompt) {
    return await this.call("POST", `/sessions/${id}/messages`, { content: prompt });
  }

  /** All sessions, page by page. */
  async listSessions(query = "") {
    const all = [];
    let cursor = "";
    do {
      const page = await this.call("GET", `/sessions?limit=2&${query}${cursor && `&cursor=${cursor}`}`);
      all.push(...page.sessions);
      cursor = page.nextCursor;
    } while (cursor);
    return all;
  }

  async deleteSession(id) {
    return await this.call("DELETE", `/sessions/${id}?purge=true`);
  }

  async destroy(id) {
    return (await this.call("DELETE", `/sessions/${id}`)).session;
  }

  /** Events of a session from now on, one after the other. */
  async *events(id, after) {
    const headers = { authorization: `Bearer ${this.key}`, "last-event-id": after };
    const response = await fetch(`${this.url}/api/sessions/${id}/stream`, { headers });
    let text = "";
    for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
      text += chunk;
      for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
        const frame = text.slice(0, end);
        const event = /^event: (.*)$/m.exec(frame);
        if (event) yield { event: event[1], data: JSON.parse(/^data: (.*)$/m.exec(frame)[1]) };
      }
    }
  }
}

const client = new Client(url, key);

function createSessionId(userId, taskType) {
  return `${userId}-${taskType}-${Date.now()}`;
}

async function cleanupExpiredSessions(maxAgeMs, now) {
  const deleted = [];
  for (const session of await client.listSessions()) {
    if (now - new Date(session.createdAt).getTime() > maxAgeMs) {
      await client.deleteSession(session.id);
      deleted.push(session.id);
    }
  }
  return deleted;
}

async function withSessionLock(id, work) {
  const { lock } = await client.call("POST", `/sessions/${id}/lock`, { ttl: 300, holder: "a program" });
  const holder = new Client(url, key, lock.token);
  try {
    return await work(holder);
  } finally {
    await holder.call("DELETE", `/sessions/${id}/lock`);
  }
}

/** The error of a refused call. Throws if the call succeeds. */
async function refused(call) {
  try {
    await call;
  } catch (error) {
    if (error instanceof Refusal) return [error.status, error.code];
    throw error;
  }
  throw new Error("not refused");
}

const programs = {
  async create(id, options = "{}") {
    const session = await client.createSession({ sessionId: id, ...JSON.parse(options) });
    const answer = await client.sendAndWait(id, "the tower is high");
    return { id: session.id, status: answer.status };
  },

  async resume(id, options = "{}") {
    const { session, resume } = await client.resumeSession(id, JSON.parse(options));
    const answer = await client.sendAndWait(id, "what did we discuss earlier?");
    return { status: session.status, config: session.config, lost: resume?.lost, text: answer.text };
  },

  /** A resume needs the client's key again. */
  async ownKey(id, base) {
    const provider = { type: "anthropic", baseUrl: base, apiKey: process.env.OWN_KEY };
    await client.createSession({ sessionId: id, provider });
    await client.sendAndWait(id, "say: hello");
    await client.call("POST", `/sessions/${id}/pause`, {});
    const without = await refused(client.resumeSession(id));
    const { session } = await client.resumeSession(id, { provider });
    const answer = await client.sendAndWait(id, "say: again");
    return { without, shown: session.config.ownProvider, status: answer.status };
  },

  async ids() {
    const id = createSessionId("alice", "code-review");
    await client.createSession({ sessionId: id });
    await client.createSession({ sessionId: "tenant-acme-onboarding" });
    const hers = await client.listSessions("idPrefix=alice-");
    return { id, hers: hers.map((session) => session.id) };
  },

  async list() {
    return (await client.listSessions()).map((session) => [session.id, typeof session.createdAt]);
  },

  async cleanup(maxAgeMs, now) {
    return await cleanupExpiredSessions(Number(maxAgeMs), Number(now));
  },

  /** Destroys the session whatever happens before. */
  async destroy(id) {
    await client.createSession({ sessionId: id });
    let failure;
    try {
      await client.sendAndWait(id, "write done.txt: the task is complete");
      throw new Error("something else went wrong");
    } catch (error) {
      failure = error.message;
    } finally {
      await client.destroy(id);
    }
    return { failure, resumed: await refused(client.resumeSession(id)) };
  },

  async idle(id) {
    await client.createSession({ sessionId: id, idleTimeout: 4 });
    const events = client.events(id, "0");
    await client.sendAndWait(id, "hello");
    const seen = [];
    for await (const { event, data } of events) {
      if (["session_idle", "timeout_warning"].includes(event)) seen.push([event, typeof data.idleDurationMs]);
      if (event === "paused") break;
    }
    return seen;
  },

  /** The key identifies the owner, so the program parses nothing. */
  async resumeWithAuth(id) {
    return (await client.resumeSession(id)).session.owner;
  },

  async lock(id) {
    await client.createSession({ sessionId: id });
    const inside = await withSessionLock(id, async (holder) => {
      const other = await refused(client.sendAndWait(id, "me, too"));
      const second = await refused(withSessionLock(id, async () => {}));
      const answer = await holder.sendAndWait(id, "continue the task");
      return { other, second, status: answer.status };
    });
    const after = await client.sendAndWait(id, "and now?");
    return { ...inside, after: after.status };
  },

  async artifacts(id) {
    await client.createSession({ sessionId: id });
    await client.sendAndWait(id, "run: echo '# Plan' > $ASH_SESSION_DIR/plan.md; echo hi > $ASH_SESSION_DIR/files/analysis.md");
    const { plan } = await client.call("GET", `/sessions/${id}/plan`);
    const { artifacts } = await client.call("GET", `/sessions/${id}/artifacts`);
    const { checkpoints } = await client.call("GET", `/sessions/${id}/checkpoints`);
    return { plan, artifacts: artifacts.map((one) => one.path), checkpoints: checkpoints.length };
  },
};

let answer;
try {
  answer = await programs[what](...args);
} catch (error) {
  if (!(error instanceof Refusal)) throw error;
  answer = { refused: [error.status, error.code] };
}
console.log(JSON.stringify(answer));
process.exit(0);
