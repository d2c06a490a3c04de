/* A guest without an operating system, started by the PVH protocol: counts at physical 0x200000 and writes the count into
 * one of 1,024 pages from 0x400000 on, for ever. It runs under any KVM, also one that cannot run Linux, and the host sees
 * from one integer whether the VM runs, stands still, or went on from where it was saved. */
.section .note.pvh, "a", @note
.align 4
.long 4, 4, 18                  /* name size, value size, XEN_ELFNOTE_PHYS32_ENTRY */
.asciz "Xen"
.align 4
.long entry

.section .text, "ax"
.code32
.globl entry
entry:
  cli
  movl $0x200000, %edi
  movl $0, (%edi)
count:
  incl (%edi)
  movl (%edi), %eax
  movl %eax, %ecx
  andl $1023, %ecx
  shll $12, %ecx
  movl %eax, 0x400000(%ecx)
  jmp count
