// Waits for a condition, with a deadline.

const DEADLINE_MS = 60_000;

/** The first answer that is not `false` or `undefined`. A condition that throws is asked again, until the deadline. */
export async function eventually<T>(
  condition: () => Promise<T | false | undefined> | T | false | undefined,
): Promise<T> {
  const deadline = Date.now() + DEADLINE_MS;
  for (;;) {
    try {
      const answer = await condition();
      if (answer !== false && answer !== undefined) return answer;
    } catch (error) {
      if (Date.now() > deadline) throw error;
    }
    if (Date.now() > deadline) throw new Error(`it did not come true within ${DEADLINE_MS} ms: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
