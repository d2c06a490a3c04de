import { z } from 'zod';
import { Diff, DiffQuery } from './diff.js';
import { EventsQuery, LineageNode } from './events.js';
import { Flag, IdParams, TagParams } from './fields.js';
import * as files from './files.js';
import { ChangeNetwork, NetworkInfo } from './network.js';
import { PortInfo, PortParams } from './ports.js';
import * as sandboxes from './sandboxes.js';
import * as snapshots from './snapshots.js';
import * as workspaces from './workspaces.js';

/** Least first: who may do more may do everything that who may do less may do. `open` needs no token at all. */
export const ROLES = ['open', 'read', 'user', 'admin'] as const;
export type Role = Exclude<(typeof ROLES)[number], 'open'>;

/** One route: what it takes and what it answers. The daemon serves this table, and `openapi.json` is made from it. */
export interface Route {
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  path: string;
  summary: string;
  /** Who may call it. @default `read` for GET, else `user` */
  role?: (typeof ROLES)[number];
  params?: z.ZodType;
  query?: z.ZodType;
  body?: z.ZodType;
  /** Where the body is not JSON: it is streamed as it comes. */
  bodyType?: 'application/octet-stream';
  /** Where the answer is not JSON. `websocket`: the connection is upgraded. The last: whatever a program answers. */
  replyType?: 'text/plain' | 'text/html' | 'text/event-stream' | 'application/octet-stream' | 'websocket' | '*/*';
  /** Takes every method, and any body, as they come: `method` is the one that documents it. */
  passes?: true;
  /** With `Accept: application/x-ndjson` or `text/event-stream` the answer is a stream of these. */
  streams?: z.ZodType;
  /** Creates something: a repetition with the same `Idempotency-Key` gets the first answer again. */
  creates?: true;
  /** By status. Every status from 400 on is an `ErrorBody`. `null`: no body. */
  replies: Record<number, z.ZodType | null>;
}

const SpawnQuery = z.strictObject({ settle: Flag.optional() });

export const ROUTES = {
  health: {
    method: 'GET',
    path: '/healthz',
    summary: 'Whether the daemon is up; needs no token',
    role: 'open',
    replies: { 200: z.object({ ok: z.literal(true) }) },
  },
  version: {
    method: 'GET',
    path: '/version',
    summary: 'Version of the daemon and of the API',
    replies: { 200: z.object({ version: z.string(), api: z.literal('v1'), pid: z.number().int().optional() }) },
  },
  metrics: {
    method: 'GET',
    path: '/metrics',
    summary: 'Prometheus metrics',
    replyType: 'text/plain',
    replies: { 200: z.string() },
  },
  openapi: {
    method: 'GET',
    path: '/openapi.json',
    summary: 'This document',
    replies: { 200: z.looseObject({ openapi: z.string() }) },
  },
  docs: {
    method: 'GET',
    path: '/docs',
    summary: 'This document for people',
    replyType: 'text/html',
    replies: { 200: z.string() },
  },
  events: {
    method: 'GET',
    path: '/v1/events',
    summary: 'What happens, as it happens (server-sent events); goes on after the header Last-Event-ID',
    query: EventsQuery,
    replyType: 'text/event-stream',
    replies: { 200: z.string() },
  },
  lineage: {
    method: 'GET',
    path: '/v1/lineage',
    summary: 'Who came from whom: snapshots, their sandboxes, and the snapshots branched from those',
    replies: { 200: z.array(LineageNode) },
  },
  diff: {
    method: 'GET',
    path: '/v1/diff',
    summary: 'What differs between two sandboxes or snapshots of one line: files, processes, pages of memory',
    role: 'user',
    query: DiffQuery,
    replies: { 200: Diff },
  },
  listRecipes: {
    method: 'GET',
    path: '/v1/recipes',
    summary: 'What snapshots can be made from',
    replies: { 200: z.array(snapshots.RecipeInfo) },
  },
  listSnapshots: {
    method: 'GET',
    path: '/v1/snapshots',
    summary: 'All snapshots, also those being written',
    replies: { 200: z.array(snapshots.SnapshotInfo) },
  },
  createSnapshot: {
    method: 'POST',
    path: '/v1/snapshots',
    summary: 'Boot a VM from a recipe (or a kernel and a root disk), warm it and save it',
    creates: true,
    body: snapshots.CreateSnapshot,
    replies: { 201: snapshots.SnapshotInfo, 202: snapshots.SnapshotInfo },
  },
  getSnapshot: {
    method: 'GET',
    path: '/v1/snapshots/:tag',
    summary: 'One snapshot',
    params: TagParams,
    replies: { 200: snapshots.SnapshotInfo },
  },
  changeSnapshot: {
    method: 'PATCH',
    path: '/v1/snapshots/:tag',
    summary: 'Pin a snapshot, or say when it may be removed',
    params: TagParams,
    body: snapshots.ChangeSnapshot,
    replies: { 200: snapshots.SnapshotInfo },
  },
  shareSnapshot: {
    method: 'PUT',
    path: '/v1/snapshots/:tag/share',
    summary:
      'Let others read a snapshot and spawn from it, by the names of their tokens or all; they cannot change or remove it',
    params: TagParams,
    body: snapshots.ShareSnapshot,
    replies: { 200: snapshots.SnapshotInfo },
  },
  gc: {
    method: 'POST',
    path: '/v1/gc',
    summary: 'Remove the snapshots that are not to be kept any longer, and say why; with dry_run only say it',
    role: 'admin',
    body: snapshots.GcRequest,
    replies: { 200: snapshots.GcReport },
  },
  deleteSnapshot: {
    method: 'DELETE',
    path: '/v1/snapshots/:tag',
    summary: 'Remove a snapshot',
    params: TagParams,
    query: snapshots.DeleteSnapshotQuery,
    replies: { 204: null },
  },
  snapshotInfo: {
    method: 'GET',
    path: '/v1/snapshots/:tag/info',
    summary: 'Sizes and relatives of a snapshot',
    params: TagParams,
    replies: { 200: snapshots.SnapshotInfoDetail },
  },
  compactSnapshot: {
    method: 'POST',
    path: '/v1/snapshots/:tag/compact',
    summary: 'Flatten a chain of snapshots into a new one',
    creates: true,
    params: TagParams,
    body: snapshots.CompactSnapshot,
    replies: { 200: snapshots.SnapshotInfo },
  },
  listSandboxes: {
    method: 'GET',
    path: '/v1/sandboxes',
    summary: 'Sandboxes, newest first; a page ends with the header X-Next-Token when there are more',
    query: sandboxes.ListSandboxesQuery,
    replies: { 200: z.array(sandboxes.SandboxInfo) },
  },
  spawn: {
    method: 'POST',
    path: '/v1/sandboxes',
    summary: 'Spawn n sandboxes from a snapshot; with ?settle=true each child is reported separately',
    creates: true,
    query: SpawnQuery,
    body: sandboxes.SpawnRequest,
    replies: { 201: z.union([z.array(sandboxes.SandboxInfo), sandboxes.SpawnResults]) },
  },
  getSandbox: {
    method: 'GET',
    path: '/v1/sandboxes/:id',
    summary: 'One sandbox',
    params: IdParams,
    replies: { 200: sandboxes.SandboxInfo },
  },
  changeSandbox: {
    method: 'PATCH',
    path: '/v1/sandboxes/:id',
    summary: 'Change the labels of a sandbox or when it ends',
    params: IdParams,
    body: sandboxes.ChangeSandbox,
    replies: { 200: sandboxes.SandboxInfo },
  },
  getNetwork: {
    method: 'GET',
    path: '/v1/sandboxes/:id/network',
    summary: 'Where the connections of a sandbox may go, and where they went',
    params: IdParams,
    replies: { 200: NetworkInfo },
  },
  changeNetwork: {
    method: 'PUT',
    path: '/v1/sandboxes/:id/network',
    summary: 'Replace the network policy of a sandbox, at once: connections it does not allow are cut',
    params: IdParams,
    body: ChangeNetwork,
    replies: { 200: NetworkInfo },
  },
  networkAuthority: {
    method: 'GET',
    path: '/v1/network/ca',
    summary: 'The certificate of the authority that speaks for hosts to which headers are set, in PEM',
    replyType: 'text/plain',
    replies: { 200: z.string() },
  },
  killSandbox: {
    method: 'DELETE',
    path: '/v1/sandboxes/:id',
    summary: 'End a sandbox',
    params: IdParams,
    replies: { 204: null },
  },
  pause: {
    method: 'POST',
    path: '/v1/sandboxes/:id/pause',
    summary: 'Stop the CPUs of a sandbox; it keeps its memory',
    params: IdParams,
    replies: { 200: sandboxes.SandboxInfo },
  },
  resume: {
    method: 'POST',
    path: '/v1/sandboxes/:id/resume',
    summary: 'Let a paused sandbox go on',
    params: IdParams,
    replies: { 200: sandboxes.SandboxInfo },
  },
  console: {
    method: 'GET',
    path: '/v1/sandboxes/:id/console',
    summary: 'The most recent output of the serial console of a sandbox',
    params: IdParams,
    replyType: 'text/plain',
    replies: { 200: z.string() },
  },
  pty: {
    method: 'GET',
    path: '/v1/sandboxes/:id/pty',
    summary:
      'A terminal over a WebSocket: binary frames are its bytes, text frames are JSON ({"type":"resize","cols","rows"} in, {"type":"exit","exit_code"} out)',
    role: 'user',
    params: IdParams,
    query: sandboxes.PtyQuery,
    replyType: 'websocket',
    replies: { 101: null },
  },
  ports: {
    method: 'GET',
    path: '/v1/sandboxes/:id/ports',
    summary: 'The TCP ports that programs in a sandbox listen on',
    role: 'user',
    params: IdParams,
    replies: { 200: z.array(PortInfo) },
  },
  proxy: {
    method: 'GET',
    path: '/v1/sandboxes/:id/proxy/:port/*',
    summary:
      'Whatever the program at a port of a sandbox answers, HTTP or WebSocket, to any method; also by the name PORT-ID.DOMAIN',
    role: 'user',
    passes: true,
    params: PortParams,
    replyType: '*/*',
    replies: { 200: z.string() },
  },
  tunnel: {
    method: 'GET',
    path: '/v1/sandboxes/:id/tunnel/:port',
    summary:
      'TCP to a port of a sandbox over a WebSocket: binary frames are its bytes, an empty one says that nothing more comes from that side',
    role: 'user',
    params: PortParams,
    replyType: 'websocket',
    replies: { 101: null },
  },
  readFile: {
    method: 'GET',
    path: '/v1/sandboxes/:id/files',
    summary: 'Download a file',
    role: 'user',
    params: IdParams,
    query: files.FileQuery,
    replyType: 'application/octet-stream',
    replies: { 200: z.string() },
  },
  writeFile: {
    method: 'PUT',
    path: '/v1/sandboxes/:id/files',
    summary: 'Upload a file, making the folders above it; what was there is replaced',
    params: IdParams,
    query: files.FileQuery,
    bodyType: 'application/octet-stream',
    replies: { 204: null },
  },
  removeFile: {
    method: 'DELETE',
    path: '/v1/sandboxes/:id/files',
    summary: 'Remove a file or a whole folder',
    params: IdParams,
    query: files.FileQuery,
    replies: { 204: null },
  },
  statFile: {
    method: 'GET',
    path: '/v1/sandboxes/:id/files/stat',
    summary: 'One file or folder',
    role: 'user',
    params: IdParams,
    query: files.FileQuery,
    replies: { 200: files.FileInfo },
  },
  listFiles: {
    method: 'GET',
    path: '/v1/sandboxes/:id/files/list',
    summary: 'What is in a folder',
    role: 'user',
    params: IdParams,
    query: files.ListFilesQuery,
    replies: { 200: z.array(files.FileInfo) },
  },
  watchFiles: {
    method: 'GET',
    path: '/v1/sandboxes/:id/files/watch',
    summary: 'Changes below a folder, as they happen (server-sent events; the first one is "start")',
    role: 'user',
    params: IdParams,
    query: files.WatchFilesQuery,
    replyType: 'text/event-stream',
    replies: { 200: z.string() },
  },
  makeFolder: {
    method: 'POST',
    path: '/v1/sandboxes/:id/files/folder',
    summary: 'Make a folder and those above it; 200 if it was there',
    params: IdParams,
    query: files.FileQuery,
    replies: { 200: files.FileInfo, 201: files.FileInfo },
  },
  moveFile: {
    method: 'POST',
    path: '/v1/sandboxes/:id/files/move',
    summary: 'Rename a file or folder',
    params: IdParams,
    body: files.MoveFile,
    replies: { 200: files.FileInfo },
  },
  ping: {
    method: 'POST',
    path: '/v1/sandboxes/:id/ping',
    summary: 'Ask the agent of a sandbox whether it is there',
    params: IdParams,
    replies: { 200: sandboxes.PingResponse },
  },
  exec: {
    method: 'POST',
    path: '/v1/sandboxes/:id/exec',
    summary: 'Run a program; with `Accept: application/x-ndjson` or `text/event-stream` its output is streamed',
    params: IdParams,
    body: sandboxes.ExecRequest,
    streams: sandboxes.ExecEvent,
    replies: { 200: sandboxes.ExecResponse },
  },
  eval: {
    method: 'POST',
    path: '/v1/sandboxes/:id/eval',
    summary: 'Evaluate code in the warmed interpreter',
    params: IdParams,
    body: sandboxes.EvalRequest,
    replies: { 200: sandboxes.EvalResponse },
  },
  branch: {
    method: 'POST',
    path: '/v1/sandboxes/:id/branch',
    summary: 'Save a running sandbox as a new snapshot',
    creates: true,
    params: IdParams,
    body: sandboxes.BranchRequest,
    replies: { 201: snapshots.SnapshotInfo, 202: snapshots.SnapshotInfo },
  },
  fork: {
    method: 'POST',
    path: '/v1/sandboxes/:id/fork',
    summary: 'Branch a running sandbox and spawn n children of it; each is reported separately',
    creates: true,
    params: IdParams,
    body: sandboxes.ForkRequest,
    replies: { 201: z.object({ snapshot: snapshots.SnapshotInfo, ...sandboxes.SpawnResults.shape }) },
  },
  rollback: {
    method: 'POST',
    path: '/v1/sandboxes/:id/rollback',
    summary: 'Take a sandbox back to a snapshot it came from, or that was taken of it; it keeps its id, and then runs',
    params: IdParams,
    body: sandboxes.RollbackRequest,
    replies: { 200: sandboxes.SandboxInfo },
  },
  promote: {
    method: 'POST',
    path: '/v1/sandboxes/:id/promote',
    summary: 'A child takes the id of the sandbox it was forked from; that one, if it still runs, ends',
    params: IdParams,
    replies: { 200: sandboxes.SandboxInfo },
  },
  listWorkspaces: {
    method: 'GET',
    path: '/v1/workspaces',
    summary: 'All workspaces',
    replies: { 200: z.array(workspaces.WorkspaceInfo) },
  },
  createWorkspace: {
    method: 'POST',
    path: '/v1/workspaces',
    summary: 'Create a named sandbox that can be suspended',
    creates: true,
    body: workspaces.CreateWorkspace,
    replies: { 201: workspaces.WorkspaceInfo },
  },
  getWorkspace: {
    method: 'GET',
    path: '/v1/workspaces/:name',
    summary: 'One workspace',
    params: workspaces.NameParams,
    replies: { 200: workspaces.WorkspaceInfo },
  },
  deleteWorkspace: {
    method: 'DELETE',
    path: '/v1/workspaces/:name',
    summary: 'Remove a workspace, its sandbox and its saved state',
    params: workspaces.NameParams,
    replies: { 204: null },
  },
  suspendWorkspace: {
    method: 'POST',
    path: '/v1/workspaces/:name/suspend',
    summary: 'Save a workspace and end its sandbox',
    params: workspaces.NameParams,
    body: workspaces.SuspendWorkspace,
    replies: { 200: workspaces.WorkspaceInfo },
  },
  resumeWorkspace: {
    method: 'POST',
    path: '/v1/workspaces/:name/resume',
    summary: 'Start a suspended workspace again',
    params: workspaces.NameParams,
    replies: { 200: workspaces.WorkspaceInfo },
  },
} as const satisfies Record<string, Route>;

export type RouteName = keyof typeof ROUTES;

/** Who may call a route. */
export function roleOf({ role, method }: Route): (typeof ROLES)[number] {
  return role ?? (method === 'GET' ? 'read' : 'user');
}
