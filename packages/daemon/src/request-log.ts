import type { Operation } from './operation.js';

/** One line for each request, at its end. */
export function logRequest({
  request,
  route,
  path,
  status,
  seconds,
  remote,
  subjects,
  outcome,
  broke,
}: Operation): void {
  const line = {
    method: request.method,
    route: route?.path ?? path.slice(0, 200),
    status,
    ms: Math.round(seconds * 1e5) / 100,
    caller: request.caller?.name,
    remote,
    ...subjects,
    outcome,
    ...(broke !== undefined && { err: broke }),
  };
  if (outcome === 'internal') request.log.error(line, 'request');
  else if (route?.role === 'open') request.log.debug(line, 'request');
  else request.log.info(line, 'request');
}
