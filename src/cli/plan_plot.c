/* plan_plot.c -- `lockstep plan --plot`: an SVG of a host's memory under each strategy, and of the
 * efficiency with more workers where that is known. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "cli/plan.h"

enum { LEFT = 70, TOP = 50, WIDE = 360, HIGH = 260, APART = 470, BOTTOM = TOP + HIGH, KINDS = 5 };

static const char *const kinds[KINDS]   = { "parameters", "optimizer", "gradients", "activations",
                                            "buffers" };
static const char *const colours[KINDS] = { "#4878a8", "#e49444", "#6a9f58", "#a87c9f", "#967662" };

/* printf-like; none of the words has a character that XML would read otherwise. */
static void text(FILE *file, double x, double y, const char *anchor, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static void text(FILE *file, double x, double y, const char *anchor, const char *format, ...)
{
    va_list values;
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    va_start(values, format);
    (void)vfprintf(file, format, values);
    va_end(values);
    fprintf(file, "</text>\n");
}

static void line(FILE *file, double x1, double y1, double x2, double y2, const char *colour)
{
    fprintf(file, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, y1,
            x2, y2, colour);
}

/* ---- Memory ------------------------------------------------------------------------------ */

static void draw_bar(FILE *file, const plan_row *row, double x, double wide, double most)
{
    const lk_parallel_cost *c = &row->cost.shared;
    const double parts[KINDS] = { (double)c->params, (double)c->optimizer, (double)c->gradients,
                                  (double)(row->cost.workers * row->cost.activations),
                                  (double)(c->tables + row->cost.packs + c->messages +
                                           row->cost.workers * row->cost.program) };
    double       y            = BOTTOM;
    for (int k = 0; k < KINDS; k++) {
        double high = HIGH * parts[k] / most;
        y -= high;
        fprintf(file, "<rect x=\"%.1f\" y=\"%.2f\" width=\"%.1f\" height=\"%.2f\" fill=\"%s\"/>\n",
                x, y, wide, high, colours[k]);
    }
    text(file, x + wide / 2, BOTTOM + 18, "middle", "%s", row->strategy);
    text(file, x + wide / 2, y - 5, "middle", "%.4g MiB", row->whole / (1 << 20));
}

static void draw_memory(FILE *file, const plan_options *o, const plan_table *plan)
{
    double most = o->memory, each = (double)WIDE / plan->row_count;
    for (uint32_t i = 0; i < plan->row_count; i++)
        most = fmax(most, plan->rows[i].whole);
    text(file, LEFT + WIDE / 2., TOP - 25, "middle", "memory of a host");
    line(file, LEFT, BOTTOM, LEFT + WIDE, BOTTOM, "black");
    for (uint32_t i = 0; i < plan->row_count; i++)
        draw_bar(file, &plan->rows[i], LEFT + each * (i + 0.2), each * 0.6, most);
    if (o->memory > 0) {
        double y = BOTTOM - HIGH * o->memory / most;
        line(file, LEFT, y, LEFT + WIDE, y, "#c02020");
        text(file, LEFT + WIDE, y - 4, "end", "what a host has");
    }
    for (int k = 0; k < KINDS; k++) {
        double x = LEFT + k * WIDE / (double)KINDS;
        fprintf(file, "<rect x=\"%.1f\" y=\"%d\" width=\"9\" height=\"9\" fill=\"%s\"/>\n", x,
                BOTTOM + 34, colours[k]);
        text(file, x + 12, BOTTOM + 43, "start", "%s", kinds[k]);
    }
}

/* ---- Efficiency -------------------------------------------------------------------------- */

static double x_of(const plan_table *plan, uint32_t i)
{
    return LEFT + APART + WIDE * (plan->point_count > 1 ? i / (plan->point_count - 1.) : 0.5);
}

static void draw_curve(FILE *file, const plan_table *plan, bool each, const char *colour)
{
    fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colour);
    for (uint32_t i = 0; i < plan->point_count; i++) {
        const plan_point *p = &plan->points[i];
        if (each || p->dealt)
            fprintf(file, "%.1f,%.2f ", x_of(plan, i),
                    BOTTOM - HIGH * fmin(1, each ? p->each.efficiency
                                                 : plan->alone / p->same.seconds / p->workers));
    }
    fprintf(file, "\"/>\n");
}

static void draw_efficiency(FILE *file, const plan_table *plan)
{
    const plan_row *row = &plan->rows[plan->chosen < plan->row_count ? plan->chosen : 0];
    text(file, LEFT + APART + WIDE / 2., TOP - 25, "middle", "efficiency with %s by workers",
         row->strategy);
    for (int tenth = 0; tenth <= 10; tenth += 2) {
        double y = BOTTOM - HIGH * tenth / 10.;
        line(file, LEFT + APART, y, LEFT + APART + WIDE, y, tenth == 0 ? "black" : "#d0d0d0");
        text(file, LEFT + APART - 6, y + 4, "end", "%.1f", tenth / 10.);
    }
    for (uint32_t i = 0; i<plan->point_count; i += plan->point_count> 9 ? 2 : 1)
        text(file, x_of(plan, i), BOTTOM + 18, "middle", "%u", plan->points[i].workers);
    draw_curve(file, plan, true, colours[0]);
    draw_curve(file, plan, false, colours[1]);
    fprintf(file, "<g fill=\"%s\">", colours[0]);
    text(file, LEFT + APART, BOTTOM + 43, "start", "as much for each worker");
    fprintf(file, "</g>\n<g fill=\"%s\">", colours[1]);
    text(file, LEFT + APART + WIDE, BOTTOM + 43, "end", "this batch for all");
    fprintf(file, "</g>\n");
}

int lki_plan_plot(const plan_options *o, const plan_table *plan)
{
    FILE *file = fopen(o->plot, "we");
    int   wide = LEFT + WIDE + 40 + (plan->timed ? APART : 0);
    if (file != NULL) {
        fprintf(file,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                "font-family=\"sans-serif\" font-size=\"12\">\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                wide, BOTTOM + 60);
        draw_memory(file, o, plan);
        if (plan->timed)
            draw_efficiency(file, plan);
        fprintf(file, "</svg>\n");
    }
    bool failed = file == NULL || ferror(file) != 0;
    if (file != NULL && fclose(file) != 0)
        failed = true;
    if (failed)
        fprintf(stderr, "lockstep plan: cannot write %s: %s\n", o->plot, strerror(errno));
    return failed ? LKI_EXIT_FAILURE : 0;
}
