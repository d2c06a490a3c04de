/** Everything an async iterator gives, as an array: `await all(client.sandboxes.list())`. */
export async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const item of items) list.push(item);
  return list;
}
