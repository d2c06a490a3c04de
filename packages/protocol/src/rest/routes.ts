import { z } from 'zod';
import { IdParams, TagParams } from './fields.js';
import * as sandboxes from './sandboxes.js';
import * as snapshots from './snapshots.js';
import * as workspaces from './workspaces.js';

/** One route: what it takes and what it answers. The daemon serves this table, and `openapi.json` is made from it. */
export interface Route {
  method: 'GET' | 'POST' | 'DELETE';
  path: string;
  summary: string;
  params?: z.ZodType;
  query?: z.ZodType;
  body?: z.ZodType;
  /** By status. Every status from 400 on is an `ErrorBody`. `null`: no body. */
  replies: Record<number, z.ZodType | null>;
}

const Wait = z.strictObject({ settle: z.enum(['true', 'false']).optional() });

export const ROUTES = {
  health: {
    method: 'GET',
    path: '/healthz',
    summary: 'Whether the daemon is up; needs no token',
    replies: { 200: z.object({ ok: z.literal(true) }) },
  },
  version: {
    method: 'GET',
    path: '/version',
    summary: 'Version of the daemon and of the API',
    replies: { 200: z.object({ version: z.string(), api: z.literal('v1') }) },
  },
  metrics: {
    method: 'GET',
    path: '/metrics',
    summary: 'Prometheus metrics',
    replies: { 200: z.string() },
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
    query: Wait,
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
  killSandbox: {
    method: 'DELETE',
    path: '/v1/sandboxes/:id',
    summary: 'End a sandbox',
    params: IdParams,
    replies: { 204: null },
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
    summary: 'Run a program; with `Accept: application/x-ndjson` its output is streamed',
    params: IdParams,
    body: sandboxes.ExecRequest,
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
    params: IdParams,
    body: sandboxes.BranchRequest,
    replies: { 201: snapshots.SnapshotInfo, 202: snapshots.SnapshotInfo },
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
