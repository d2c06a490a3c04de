/** Applied in order, once each; the database remembers how many. Never change one that has been released: add another. */
export const MIGRATIONS: readonly string[] = [
  `
  create table snapshots (
    tag text primary key,
    owner text not null,
    status text not null,
    created_at integer not null,
    recipe text,
    warning text
  ) strict;
  create table sandboxes (
    id text primary key,
    snapshot_tag text not null,
    owner text not null,
    state text not null,
    pid integer,
    start_time integer,
    created_at integer not null,
    expires_at integer,
    ended_at integer,
    exit_reason text,
    metadata text not null,
    request_key text,
    memory_limit_mib integer,
    vcpus integer not null,
    memory_mib integer not null
  ) strict;
  create index sandboxes_by_state on sandboxes (state);
  create table answers (
    key text not null,
    owner text not null,
    request_hash text not null,
    status integer,
    body text,
    created_at integer not null,
    primary key (owner, key)
  ) strict;
  `,
  `
  alter table sandboxes add column branch_count integer not null default 0;
  alter table sandboxes add column last_branch text;
  alter table sandboxes add column env text not null default '{}';
  create table workspaces (
    name text primary key,
    owner text not null,
    source_tag text not null,
    state_tag text,
    status text not null,
    sandbox_id text,
    memory_limit_mib integer,
    env text not null,
    created_at integer not null,
    last_active integer not null
  ) strict;
  `,
  'alter table workspaces add column spare_tag text;',
  `
  alter table sandboxes add column place text not null default '';
  update sandboxes set place = id;
  alter table sandboxes add column promoted_from text;
  `,
  `
  alter table sandboxes add column budget text;
  alter table snapshots add column line text;
  alter table snapshots add column bytes integer;
  `,
  `
  alter table snapshots add column expires_at integer;
  alter table snapshots add column pinned integer;
  `,
  'alter table sandboxes add column guest_branch integer not null default 0;',
  `
  alter table sandboxes add column limits text not null default '{}';
  alter table sandboxes add column disk_mib integer not null default 0;
  alter table workspaces add column limits text not null default '{}';
  `,
  'alter table snapshots add column shared_with text;',
  // Secrets are in no record, so that nothing that shows a record can show them. They go with what they belong to.
  `
  alter table sandboxes add column policy text not null default '{"preset":"none","allow":[],"deny":[]}';
  create index sandboxes_by_place on sandboxes (place);
  create table egress_rules (
    subject text primary key,
    owner text not null,
    rules text not null
  ) strict;
  create trigger sandbox_forgotten after delete on sandboxes
    begin delete from egress_rules where subject = old.id; end;
  create trigger sandbox_renamed after update of id on sandboxes
    begin update egress_rules set subject = new.id where subject = old.id; end;
  create trigger snapshot_forgotten after delete on snapshots
    begin delete from egress_rules where subject = 'tag:' || old.tag; end;
  `,
];
